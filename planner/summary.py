"""Solvers side by side, each run once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from comm_plan import units
from comm_plan.errors import InputError
from comm_plan.planner.documents import dense_lower_bound_s, to_plan
from comm_plan.planner.prediction import Prediction
from comm_plan.planner.problem import Problem
from comm_plan.planner.remarks import remarks
from comm_plan.planner.solvers import (
    BASELINES,
    CHOOSING,
    MERGED,
    SOLVERS,
    find_solver,
)
from comm_plan.planner.verdict import judgement, merged_by, verdict
from comm_plan.plans.compression import METHODS, Dense
from comm_plan.plans.plan import TODAY, WORTHWHILE, Plan


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
        return judgement(row, today, self.rows[0], self._today)

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
        InputError: an unknown solver, a forced compressor for a solver that chooses its
            own, or as :func:`~.documents.dense_lower_bound_s`.
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


def _multiple(iteration_s: float, bound_s: float) -> float:
    if bound_s > 0:
        return iteration_s / bound_s
    return 1.0 if iteration_s == 0 else math.inf
