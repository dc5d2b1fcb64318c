"""What a page is made of: documents of one model, and what is predicted from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol

from comm_plan import units
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
        no_forecast: why that could not be; empty: it could, or one of them is missing.
        simulated: timelines of solvers, where no plan has a timing.
    """

    files: tuple[File, ...]
    profile: Profile | None
    network: Network | None
    tuning: Tuning | None
    plans: tuple[ShownPlan, ...]
    runs: tuple[ShownRun, ...]
    forecast: Forecast | None = None
    no_forecast: str = ""
    simulated: tuple[Timeline, ...] = ()

    @property
    def model(self) -> str:
        """The model's name, as far as it is known."""
        found = [d.model.name for d in (self.profile, self.tuning) if d is not None]
        found += [shown.plan.model.name for shown in self.plans]
        found += [shown.record.workload for shown in self.runs]
        return found[0] if found else ""

    def title(self, world_size: int | None = None) -> str:
        """Return the model, the ranks and the backend of its timelines.

        Args:
            world_size: ranks of the timelines that are simulated where no plan and no
                run has one; None: the network's.
        """
        timed: list[Plan | RunRecord] = [
            shown.plan
            for shown in self.plans
            if shown.plan.predicted and shown.plan.predicted.timing
        ]
        timed += [run.record for run in self.runs if run.record.timing]
        if timed:
            sizes = sorted({each.world_size for each in timed})
            backends = list(dict.fromkeys(each.backend for each in timed))
        elif self.network is not None:
            sizes = [world_size or self.network.world_size]
            backends = [self.network.backend]
        else:
            return self.model
        ranks = [*map(str, sizes[:-1]), units.counted(sizes[-1], "rank")]
        return f"{self.model}, {' and '.join(ranks)}, {' and '.join(backends)}"

    @property
    def emulated_links(self) -> dict[EmulatedLink, list[str]]:
        """The files that were measured behind each emulated link, or planned for it."""
        links: dict[EmulatedLink, list[str]] = {}
        for name, document in self.files:
            link = getattr(document, "emulated_link", None)
            short = PurePath(name).name
            if link is not None and short not in links.setdefault(link, []):
                links[link].append(short)
        return links
