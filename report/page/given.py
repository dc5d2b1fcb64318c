"""What a page is made of: documents of one model, and what is predicted from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol, TypeVar

from comm_plan.errors import InputError, MismatchError
from comm_plan.plans import (
    Document,
    EmulatedLink,
    Network,
    Plan,
    Profile,
    RunRecord,
    Timing,
    Trial,
    Tuning,
)
from comm_plan.report.solvers import Comparison
from comm_plan.report.timeline import Timeline

File = tuple[str, Document]
"""A file's name, and the document in it."""

Kind = TypeVar("Kind", bound=Document)
Item = TypeVar("Item")


class JudgedComparison(Comparison, Protocol):
    """Solvers side by side, and what they bring."""

    @property
    def verdict(self) -> str:
        """In one sentence what planning brings."""

    @property
    def left_out(self) -> dict[str, str]:
        """Why a solver could not be run, by its name."""


@dataclass(frozen=True)
class Forecast:
    """What planning says of a profile and a network.

    Attributes:
        comparison: of the solvers, on the ranks that were asked for.
        scaling: the same on other numbers of ranks, ascending.
        no_scaling: why there are none; empty: there are.
    """

    comparison: JudgedComparison
    scaling: tuple[Comparison, ...] = ()
    no_scaling: str = ""


@dataclass(frozen=True)
class ShownPlan:
    """A plan, the name that the page gives it, and the tuning's trial of it."""

    name: str
    plan: Plan
    trial: Trial | None = None


@dataclass(frozen=True)
class ShownRun:
    """A run, the name that the page gives it, and the plan that it followed.

    ``plan`` is the last one it followed, if that is among the documents.
    """

    name: str
    record: RunRecord
    plan: ShownPlan | None = None

    @property
    def first_step(self) -> int:
        """The number of the first step that was recorded; a resumed run has later."""
        return self.record.steps - len(self.record.iterations_s) + 1

    @property
    def timing(self) -> Timing | None:
        """When its buckets travelled, if it is a timing of the plan's buckets."""
        timing, plan = self.record.timing, self.plan and self.plan.plan
        fits = timing and plan and len(timing.buckets) == len(plan.buckets)
        return timing if fits else None


@dataclass(frozen=True)
class Given:
    """All that a page shows.

    Attributes:
        files: every document.
        profile: at most one.
        network: at most one.
        tuning: at most one.
        plans: in the order in which they were tried, or else given.
        runs: in the order of their plans, or else as given.
        forecast: what was computed of profile and network.
        simulated: timelines of solvers, where no plan has a timing.
    """

    files: tuple[File, ...]
    profile: Profile | None
    network: Network | None
    tuning: Tuning | None
    plans: tuple[ShownPlan, ...]
    runs: tuple[ShownRun, ...]
    forecast: Forecast | None = None
    simulated: tuple[Timeline, ...] = ()

    @property
    def model(self) -> str:
        """The model's name, as far as it is known."""
        found = [d.model.name for d in (self.profile, self.tuning) if d is not None]
        found += [shown.plan.model.name for shown in self.plans]
        found += [shown.record.workload for shown in self.runs]
        return found[0] if found else ""

    def title(self, world_size: int | None = None) -> str:
        """Return the model, the ranks unless they are given, and the backend."""
        for _, document in self.files:
            if isinstance(document, Network | Plan | RunRecord):
                ranks = world_size or document.world_size
                return f"{self.model}, {ranks} ranks, {document.backend}"
        return self.model

    @property
    def emulated_links(self) -> dict[EmulatedLink, list[str]]:
        """The files that were measured behind each emulated link, or planned for it."""
        links: dict[EmulatedLink, list[str]] = {}
        for name, document in self.files:
            link = getattr(document, "emulated_link", None)
            if link is not None:
                links.setdefault(link, []).append(PurePath(name).name)
        return links


def arrange(files: Iterable[File]) -> Given:
    """Sort documents by kind, name them, and match runs with plans and trials.

    Raises:
        InputError: none, or two different ones of a kind of which a page shows one.
        MismatchError: they are not all of one model.
    """
    found = list({document.sha256: (n, document) for n, document in files}.values())
    if not found:
        raise InputError(
            "no documents: give profiles, networks, plans, run records or a tuning"
        )
    _check_one_model(found)
    tuning = _only(found, Tuning)
    plans = _plans(_all(found, Plan), tuning)
    runs = _runs(_all(found, RunRecord), plans)
    return Given(
        files=tuple(found),
        profile=_only(found, Profile),
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
        name if counts[name] == 1 else f"{name} ({file})"
        for name, file in zip(wanted, files, strict=True)
    ]
