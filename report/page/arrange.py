"""Documents sorted by kind and named; runs matched with plans, plans with trials.

A run followed the plan of its hash. The plan of a trial is the file beside the tuning
that the trial names; other plans with the same buckets, such as the winner with another
prediction, are plans of the same trial.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TypeVar

from comm_plan.errors import InputError, MismatchError
from comm_plan.plans import (
    Document,
    Network,
    Plan,
    Profile,
    RunRecord,
    Trial,
    Tuning,
)
from comm_plan.report.page.given import File, Given, ShownPlan, ShownRun

Kind = TypeVar("Kind", bound=Document)
Item = TypeVar("Item")

Names = Mapping[str, Sequence[str]]
"""The files that hold a document, by its hash."""

Tried = tuple[Trial, Plan]
"""A trial, and the plan in its file."""


def arrange(files: Iterable[File]) -> Given:
    """Sort documents by kind, name them, and match runs with plans and trials.

    Raises:
        InputError: none, or two different ones of a kind of which a page shows one.
        MismatchError: they are not all of one model.
    """
    by_sha: dict[str, list[File]] = {}
    for name, document in files:
        by_sha.setdefault(document.sha256, []).append((name, document))
    found = [equal[0] for equal in by_sha.values()]
    names = {sha: [name for name, _ in equal] for sha, equal in by_sha.items()}
    if not found:
        raise InputError(
            "no documents: give profiles, networks, plans, run records or a tuning"
        )
    _check_one_model(found)
    profile = _only(found, Profile)
    if profile is not None:
        _check_tensors(_all(found, Plan), profile)
    tuning = _only(found, Tuning)
    plans = _plans(_all(found, Plan), tuning, names)
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
    files: Sequence[tuple[str, Plan]], tuning: Tuning | None, names: Names
) -> tuple[ShownPlan, ...]:
    plans = [plan for _, plan in files]
    tried = [] if tuning is None else _tried(tuning, plans, names)
    found = [_trial_of(plan, tried) for plan in plans]
    wanted = list(map(_wanted, plans, found))
    distinct = _distinct(wanted, [name for name, _ in files])
    trials = [of and of[0] for of in found]
    shown = map(ShownPlan, distinct, plans, trials)
    order = list(tuning.trials) if tuning else []
    return tuple(sorted(shown, key=lambda each: _place(each.trial, order)))


def _tried(tuning: Tuning, plans: Sequence[Plan], names: Names) -> list[Tried]:
    """Return the trials whose files are there, with the plans in them."""
    folders = [PurePath(name).parent for name in names[tuning.sha256]]
    by_file = {
        _location(PurePath(name)): plan for plan in plans for name in names[plan.sha256]
    }
    return [
        (trial, by_file[location])
        for trial in tuning.trials
        for location in (_location(folder / trial.plan) for folder in folders)
        if location in by_file
    ]


def _location(file: PurePath) -> str:
    """Return where ``file`` is, however it is named."""
    return os.path.normpath(Path(file).absolute())


def _trial_of(plan: Plan, tried: Sequence[Tried]) -> Tried | None:
    """Return the trial of ``plan``, its own first; None: it was not tried."""
    own = [each for each in tried if each[1] is plan]
    alike = [each for each in tried if _do_the_same(plan, each[1])]
    return next(iter((*own, *alike)), None)


def _wanted(plan: Plan, tried: Tried | None) -> str:
    """Return the name of the trial, or its own where it was solved otherwise."""
    if tried is not None and tried[1].label == plan.label:
        return tried[0].name
    return plan.label


def _do_the_same(plan: Plan, other: Plan) -> bool:
    """Return whether two plans are executed alike, whatever is predicted of them."""
    executed = (
        "buckets", "momentum_correction", "local_steps", "world_size", "backend",
    )  # fmt: skip
    return all(getattr(plan, name) == getattr(other, name) for name in executed)


def _runs(
    files: Sequence[tuple[str, RunRecord]], plans: Sequence[ShownPlan]
) -> tuple[ShownRun, ...]:
    by_sha = {shown.plan.sha256: shown for shown in plans}
    followed = [by_sha.get(_last_plan(record) or "") for _, record in files]
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


def _last_plan(record: RunRecord) -> str | None:
    return record.replans[-1].plan_sha256 if record.replans else record.plan_sha256


def _distinct(wanted: Sequence[str], files: Sequence[str]) -> list[str]:
    """Return the names that are wanted; where two are the same, with their files'.

    And with as many of the files' folders as it takes to tell them apart.
    """
    paths = [PurePath(file).with_suffix("").parts for file in files]
    names = list(wanted)
    for parts in range(1, max(map(len, paths), default=0) + 1):
        counts = Counter(names)
        names = [
            name if counts[name] == 1 else f"{want} ({'/'.join(path[-parts:])})"
            for name, want, path in zip(names, wanted, paths, strict=True)
        ]
    return names
