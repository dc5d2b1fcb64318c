"""Documents sorted by kind and named; runs matched with plans, plans with trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import TypeVar

from comm_plan.errors import InputError, MismatchError
from comm_plan.plans import Document, Network, Plan, Profile, RunRecord, Tuning
from comm_plan.report.page.given import File, Given, ShownPlan, ShownRun

Kind = TypeVar("Kind", bound=Document)
Item = TypeVar("Item")


def arrange(files: Iterable[File]) -> Given:
    """Sort documents by kind, name them, and match runs with plans and trials.

    Raises:
        InputError: none, or two different ones of a kind of which a page shows one.
        MismatchError: they are not all of one model.
    """
    by_sha: dict[str, File] = {}
    for name, document in files:
        by_sha.setdefault(document.sha256, (name, document))
    found = list(by_sha.values())
    if not found:
        raise InputError(
            "no documents: give profiles, networks, plans, run records or a tuning"
        )
    _check_one_model(found)
    profile = _only(found, Profile)
    if profile is not None:
        _check_tensors(_all(found, Plan), profile)
    tuning = _only(found, Tuning)
    plans = _plans(_all(found, Plan), tuning)
    runs = _runs(_all(found, RunRecord), plans)
    return Given(
        files=tuple(found),
        profile=profile,
        network=_only(found, Network),
        tuning=tuning,
        plans=plans,
        runs=runs,
    )


def _all(files: Sequence[File], kind: type[Kind]) -> list[tuple[str, Kind]]:
    return [(n, document) for n, document in files if isinstance(document, kind)]


def _only(files: Sequence[File], kind: type[Kind]) -> Kind | None:
    found = _all(files, kind)
    if len(found) > 1:
        names = ", ".join(name for name, _ in found)
        raise InputError(
            f"{names}: a report holds one document of {kind.SCHEMA}: give one of them"
        )
    return found[0][1] if found else None


def _fingerprint(document: Document) -> str | None:
    if isinstance(document, RunRecord):
        return document.model_fingerprint
    if isinstance(document, Profile | Plan | Tuning):
        return document.model.fingerprint
    return None


def _check_one_model(files: Sequence[File]) -> None:
    prints = [(name, _fingerprint(document)) for name, document in files]
    known = [(name, each) for name, each in prints if each is not None]
    for name, each in known:
        first_name, first = known[0]
        if each != first:
            raise MismatchError(
                f"{name}: model fingerprint {each} is not that of {first_name}, "
                f"{first}: give documents of one model"
            )


def _check_tensors(plans: Sequence[tuple[str, Plan]], profile: Profile) -> None:
    known = {tensor.name for tensor in profile.tensors}
    for name, plan in plans:
        for tensor in (t for bucket in plan.buckets for t in bucket.tensors):
            if tensor not in known:
                raise MismatchError(
                    f"{name}: tensor {tensor!r} is not in the profile: give documents "
                    "of one model"
                )


def _plans(
    files: Sequence[tuple[str, Plan]], tuning: Tuning | None
) -> tuple[ShownPlan, ...]:
    by_file = {PurePath(t.plan).name: t for t in (tuning.trials if tuning else ())}
    trials = [by_file.get(PurePath(name).name) for name, _ in files]
    wanted = [
        trial.name if trial else plan.solver
        for trial, (_, plan) in zip(trials, files, strict=True)
    ]
    names = _distinct(wanted, [name for name, _ in files])
    plans = [plan for _, plan in files]
    shown = map(ShownPlan, names, plans, trials)
    order = list(tuning.trials) if tuning else []
    return tuple(sorted(shown, key=lambda each: _place(each.trial, order)))


def _runs(
    files: Sequence[tuple[str, RunRecord]], plans: Sequence[ShownPlan]
) -> tuple[ShownRun, ...]:
    by_sha = {shown.plan.sha256: shown for shown in plans}
    followed = [by_sha.get(_last_plan(record)) for _, record in files]
    wanted = [
        plan.name if plan else record.solver
        for plan, (_, record) in zip(followed, files, strict=True)
    ]
    names = _distinct(wanted, [name for name, _ in files])
    records = [record for _, record in files]
    shown = map(ShownRun, names, records, followed)
    return tuple(sorted(shown, key=lambda each: _place(each.plan, plans)))


def _place(item: Item | None, order: Sequence[Item]) -> int:
    """Return where ``item`` is in ``order``; what is not comes last."""
    known = [number for number, each in enumerate(order) if each is item]
    return known[0] if known else len(order)


def _last_plan(record: RunRecord) -> str:
    return record.replans[-1].plan_sha256 if record.replans else record.plan_sha256


def _distinct(wanted: Sequence[str], files: Sequence[str]) -> list[str]:
    """Return the names that are wanted; where two are the same, with their files'."""
    counts = Counter(wanted)
    return [
        name if counts[name] == 1 else f"{name} ({PurePath(file).stem})"
        for name, file in zip(wanted, files, strict=True)
    ]
