"""Solvers side by side, each run once, and in plain words what there is to gain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from comm_plan import units
from comm_plan.errors import InputError
from comm_plan.planner.documents import dense_lower_bound_s, to_plan
from comm_plan.planner.problem import DDP_CAPS, HOROVOD_CAPS, Problem, Solution
from comm_plan.planner.remarks import remarks
from comm_plan.planner.schedule import Schedule
from comm_plan.planner.solvers import (
    BASELINES,
    CHOOSING,
    MERGED,
    SOLVERS,
    find_solver,
)
from comm_plan.plans.compression import METHODS, Dense
from comm_plan.plans.plan import TODAY, WORTHWHILE, Plan

WHOSE = {DDP_CAPS: "DDP's", HOROVOD_CAPS: "Horovod's"}
"""Who closes buckets at these caps, in bytes."""


@dataclass(frozen=True)
class Prediction:
    """What the schedule model says of one solver's plan.

    Attributes:
        solver: its name.
        label: that, and what was forced upon every bucket.
        solution: its buckets.
        schedule: the iteration under them.
        of_bound: iteration_s as a multiple of the lower bound for dense traffic; a
            compressed plan may be below 1.
        iterations: how many the schedule is of.
    """

    solver: str
    label: str
    solution: Solution
    schedule: Schedule
    of_bound: float
    iterations: int = 1

    @property
    def iteration_s(self) -> float:
        """Predicted iteration time."""
        return self.schedule.iteration_s / self.iterations

    @property
    def exposed_s(self) -> float:
        """Communication that computation does not hide, of each iteration."""
        return self.schedule.exposed_s / self.iterations

    @property
    def buckets(self) -> int:
        """How many messages an exchange sends."""
        return len(self.solution.stops)

    @property
    def is_local(self) -> bool:
        """Whether the ranks meet only after several steps."""
        return self.iterations > 1

    @property
    def largest_ratio(self) -> float:
        """The most compressed bucket's ratio; 1: dense."""
        return max(option.ratio for option in self.solution.options)

    @property
    def is_plain(self) -> bool:
        """Whether nothing was forced upon it."""
        return self.label == self.solver


@dataclass(frozen=True)
class Summary:
    """Solvers' predictions, fastest first.

    Attributes:
        problem: what was solved.
        rows: one for each solver that could be run; where something is forced also the
            dense baselines.
        lower_bound_s: a time that no dense plan beats.
        left_out: why a solver could not be run, by its name.
    """

    problem: Problem
    rows: tuple[Prediction, ...]
    lower_bound_s: float
    left_out: dict[str, str]

    @property
    def world_size(self) -> int:
        """Number of ranks planned for."""
        return self.problem.world_size

    @property
    def extrapolated_from(self) -> int | None:
        """The measured number of ranks where it is another one."""
        return self.problem.extrapolated_from

    @property
    def alone_s(self) -> float:
        """An iteration of one rank, without communication, compression and waiting."""
        compute = self.problem.plain.compute
        return compute.backward_end_s - compute.waiting_s + compute.update_s

    @cached_property
    def verdict(self) -> str:
        """In one sentence what planning brings over the buckets of ``threshold``."""
        if self.world_size == 1:
            return "nothing to gain: one rank has nothing to send"
        costed = not self.problem.prices.profile.compression.keys() <= {Dense().kind}
        text = verdict(self.rows, self.lower_bound_s, self._today, costed=costed)
        gain = self.problem.settings.min_gain
        abstains = any(
            row.solver == CHOOSING
            and row.largest_ratio == 1
            and row.exposed_s > WORTHWHILE * row.iteration_s
            for row in self.rows
        )
        if not abstains:
            return text
        if not costed:
            return f"{text}; {CHOOSING} had no choice: the profile costs no compressor"
        if not any(self.problem.settings.may_leave_out(name) for name in METHODS):
            return f"{text}; {CHOOSING} had no choice: it may leave nothing out"
        if gain > max(WORTHWHILE, self.problem.settings.tolerance):
            least = units.percent(gain)
            text += f"; {CHOOSING} compresses where that gains {least} or more"
        return text

    @property
    def _today(self) -> str:
        return merged_by(self.problem.settings.caps_nbytes)

    def judgement(self, solver: str) -> str:
        """Return in one sentence how the plan that was asked for does.

        Raises:
            InputError: it could not be made, and why.
        """
        row = self.row(solver)
        today = next((r for r in self.rows if r.solver == TODAY and r.is_plain), row)
        fastest = self.rows[0]
        gain = _gain(row.iteration_s, today.iteration_s)
        if row is today:
            text = f"this plan: {self._today}"
        elif abs(gain) <= WORTHWHILE:
            text = f"this plan, {row.label}: about the time of {self._today}"
        elif gain > 0:
            text = f"this plan, {row.label}: {_less(gain, self._today)}"
        else:
            text = (
                f"this plan, {row.label}, loses: {units.percent(-gain)} more time than "
                f"{self._today}"
            )
        if fastest.iteration_s < row.iteration_s * (1 - WORTHWHILE):
            less = units.percent(_gain(fastest.iteration_s, row.iteration_s))
            text += f"; {fastest.label} takes {less} less than it"
        return text

    def remarks(self, plan: Plan) -> list[str]:
        """Return what must be known beside the prediction of ``plan``, from here."""
        assert plan.predicted is not None
        solution = self.row(plan.solver).solution
        return list(remarks(self.problem, solution, plan.predicted.error_s))

    def row(self, solver: str) -> Prediction:
        """Return the row of a solver that was asked for.

        Raises:
            InputError: it could not be run, and why.
        """
        label = self.problem.settings.label(solver)
        for row in self.rows:
            if row.label == label:
                return row
        raise InputError(self.left_out[solver])

    def plan(self, solver: str) -> Plan:
        """Return the plan of a solver that was asked for.

        Raises:
            InputError: it could not be run, and why.
        """
        row = self.row(solver)
        baselines = {
            other.solver: other.iteration_s
            for other in self.rows
            if other.solver in BASELINES and other is not row and other.is_plain
        }
        return to_plan(
            self.problem,
            solver,
            row.solution,
            row.schedule,
            baselines,
            self.lower_bound_s,
        )


def solve(problem: Problem, solver: str = MERGED) -> Plan:
    """Return the plan of ``solver``, with its prediction and the dense baselines'.

    Raises:
        InputError: an unknown solver, a forced compressor for a solver that chooses its
            own, or a cost that was not measured.
    """
    return summarise(problem, [solver]).plan(solver)


def summarise(
    problem: Problem, solvers: Iterable[str] = (), beside: Iterable[str] = BASELINES
) -> Summary:
    """Return what ``solvers`` make of a problem, and others beside them.

    Each is run once.

    Args:
        problem: what to solve.
        solvers: which are asked for; a forced compressor and local steps are for them.
        beside: which to compare them with, without either; a verdict needs
            :data:`BASELINES` among both.

    Raises:
        InputError: an unknown solver, or a forced compressor for a solver that chooses
            its own.
    """
    bound = dense_lower_bound_s(problem)
    settings = problem.settings
    asked = list(dict.fromkeys(solvers))
    for name in asked:
        chosen = settings.compressor
        if find_solver(name).chooses_compression and chosen is not None:
            raise InputError(
                f"solver {name} chooses the compressor itself: leave {chosen!r} out, "
                "or use solver optimal"
            )
    runs = [(name, problem) for name in asked]
    runs += [
        (name, problem.plain)
        for name in beside
        if name not in asked or settings.label(name) != name
    ]
    rows, left_out = [], {}
    for name, posed in runs:
        try:
            solution = SOLVERS[name](posed)
        except InputError as error:
            left_out[name] = str(error)
            continue
        schedule = posed.simulate(solution)
        iterations = posed.settings.round_steps
        multiple = _multiple(schedule.iteration_s / iterations, bound)
        label = posed.settings.label(name)
        rows.append(Prediction(name, label, solution, schedule, multiple, iterations))
    rows.sort(key=lambda row: row.iteration_s)
    return Summary(problem, tuple(rows), bound, left_out)


def merged_by(caps_nbytes: tuple[int, ...]) -> str:
    """Return whose buckets have these caps, or how large they are, in bytes."""
    if caps_nbytes in WHOSE:
        return f"{WHOSE[caps_nbytes]} buckets"
    return f"buckets of {', then '.join(map(units.nbytes, caps_nbytes))}"


def verdict(
    rows: Sequence[Prediction], lower_bound_s: float, instead_of: str, *, costed: bool
) -> str:
    """Return in one sentence what planning brings over the buckets of ``threshold``.

    Args:
        rows: at least those of ``threshold`` and ``optimal``.
        lower_bound_s: for dense traffic.
        instead_of: what the buckets of ``threshold`` are called.
        costed: whether the profile says what any compressor costs.
    """
    plain = {row.solver: row for row in rows if row.is_plain}
    today, merged = plain[TODAY], plain[MERGED]
    dense = [row for row in plain.values() if row.largest_ratio == 1]
    fastest = min(dense, key=lambda row: row.iteration_s)
    if fastest.iteration_s < merged.iteration_s * (1 - WORTHWHILE):
        merged = fastest  # as a large tolerance lets it
    lossy = [row for row in rows if row.largest_ratio > 1 or row.is_local]
    if any(row.solver == CHOOSING for row in rows):  # the others keep to no accuracy
        lossy = [row for row in lossy if row.solver == CHOOSING or row.is_local]
    planned = min([merged, *lossy], key=lambda row: row.iteration_s)
    gain = _gain(merged.iteration_s, today.iteration_s)
    most = _gain(planned.iteration_s, today.iteration_s)
    if most <= WORTHWHILE and today.exposed_s <= WORTHWHILE * today.iteration_s:
        hidden_s = today.iteration_s - today.exposed_s
        exposed = max(0.0, _gain(hidden_s, today.iteration_s))
        return (
            f"nothing to gain: {instead_of} leave only {units.percent(exposed)} of the "
            "iteration exposed"
        )
    if most <= WORTHWHILE:
        best = "no plan is"
        if most > 0 and units.shows(most):
            best = f"the best plan is {units.percent(most)}"
        text = (
            f"{best} faster than {instead_of}, and no dense plan beats "
            f"{units.seconds(lower_bound_s)}"
        )
        if any(not (row.is_plain and SOLVERS[row.solver].is_baseline) for row in rows):
            return f"nothing to gain: {text}"
        left = units.percent(today.exposed_s / today.iteration_s)
        how = f": try --solver {CHOOSING}" if costed else ", but the profile costs none"
        return (
            f"merging gains nothing: {text}; {left} of the iteration is exposed, which "
            f"compression may save{how}"
        )
    if gain > max(WORTHWHILE, most - WORTHWHILE):
        by = "" if merged.solver == MERGED else f" by {merged.label}"
        return f"merge only{by}: {_less(gain, instead_of)}, exactly dense"
    how = "compress" if planned.largest_ratio > 1 else "meet less often"
    if gain <= WORTHWHILE:
        return (
            f"{how}: {planned.label} takes {_less(most, instead_of)}; merging alone "
            "gains nothing"
        )
    return (
        f"{how}: {planned.label} takes {_less(most, instead_of)}; merging alone, "
        f"exactly dense, {units.percent(gain)}"
    )


def _less(gain: float, instead_of: str) -> str:
    return f"{units.percent(gain)} less time than {instead_of}"


def _multiple(iteration_s: float, bound_s: float) -> float:
    if bound_s > 0:
        return iteration_s / bound_s
    return 1.0 if iteration_s == 0 else math.inf


def _gain(iteration_s: float, instead_of_s: float) -> float:
    """Return the share of ``instead_of_s`` that is saved; of no time, none."""
    return 1 - iteration_s / instead_of_s if instead_of_s > 0 else 0.0
