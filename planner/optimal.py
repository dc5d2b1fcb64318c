"""Exact merging: the fewest buckets that reach the best iteration time.

:func:`fastest` is the fastest of all ways to merge neighbouring gradients, for any
non-decreasing cost, by the recurrence of :mod:`comm_plan.planner.merging`.

Often many plans take about as long as the fastest: where communication is hidden, one
more start-up costs nothing in the model. In reality every message wakes threads up and
takes cores from the computation. So of all plans within the tolerance of the fastest,
:func:`solve` takes the fastest of those with the fewest buckets. It is found by the
same recurrence with at most 1, 2, ... buckets: O(B L K) for B buckets, L gradients and
a cost of K pieces.

Where computation and communication slow each other, the recurrence does not see it: its
best plan for each number of buckets is simulated, and the first that is within the
tolerance of the fastest known is taken. The fastest known is then that of the joint
search (``joint``), which sees all; its plan is taken if no other is as good.

The greedy rule of MG-WFBP, which its paper calls optimal, does not find this optimum:
with backward times (layer 1 to 3) = (2, 1, 1), sizes 1 and T(n) = 2 + n it ends at 9,
merging {3, 2}; {3}, {2, 1} ends at 8.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from comm_plan.planner.merging import merge
from comm_plan.planner.problem import Problem, Solution
from comm_plan.planner.schedule import ROUNDING, simulate


def solve(problem: Problem) -> Solution:
    """Return the fewest buckets within the tolerance of the fastest.

    How each tensor travels stays as it is assigned.
    """
    alone = fastest(problem)
    best = _in_contention(problem, alone)
    best_s = problem.simulate(best).iteration_s
    limit_s = best_s * (1 + problem.settings.tolerance + ROUNDING)
    enough_s = _sent_s(problem, alone) * (1 + ROUNDING)
    finish = [0.0] + [float("inf")] * len(problem)
    starts: list[list[int]] = []
    for _ in range(len(problem)):
        if finish[-1] <= enough_s:
            break
        finish, start = _with_one_more(problem, finish)
        starts.append(start)
        if finish[-1] + problem.compute.update_s > limit_s:
            continue  # Contention only adds to it.
        solution = problem.solution(_stops(starts))
        if problem.simulate(solution).iteration_s <= limit_s:
            return solution
    return best


def fastest(problem: Problem) -> Solution:
    """Return the fastest buckets for how each tensor travels."""
    stops: list[int] = []
    free = 0.0
    for run in problem.runs:
        ready = problem.sendable_s[run.start : run.stop]
        merges = merge(ready, run.option, run.start, free)
        stops += [run.start + stop for stop in merges.stops()]
        free = merges.finish[-1]
    return problem.solution(stops)


def _in_contention(problem: Problem, alone: Solution) -> Solution:
    """Return the fastest plan known if computation and communication disturb.

    Args:
        problem: the model and the network.
        alone: the fastest if they do not.
    """
    if problem.compute.contention is None:
        return alone
    from comm_plan.planner import joint  # loaded by those only who need it

    options = {id(option): option for option in problem.assigned}
    chosen = [id(option) for option in problem.assigned]
    own = [
        option.except_on(np.array([key != each for each in chosen]))
        for key, option in options.items()
    ]
    iteration_s = problem.simulate(alone).iteration_s
    return joint.within(problem, own, iteration_s) or alone


def _sent_s(problem: Problem, solution: Solution) -> float:
    """Return when all is sent if nothing slows it."""
    times = solution.times()
    compute = replace(problem.compute, contention=None)
    return float(simulate(compute, solution.stops, times).finish_s[-1])


def _with_one_more(
    problem: Problem, before: list[float]
) -> tuple[list[float], list[int]]:
    """Return the finish of every prefix and the start of its last bucket, [L + 1].

    Args:
        problem: the model and the network.
        before: [L + 1] the earliest finish of every prefix with one bucket less.
    """
    finish, starts = [0.0], [0]
    for run in problem.runs:
        ready = problem.sendable_s[run.start : run.stop]
        known = before[run.start : run.stop + 1]
        merges = merge(ready, run.option, run.start, before=known)
        finish += merges.finish[1:]
        starts += [run.start + start for start in merges.start[1:]]
    return finish, starts


def _stops(starts: list[list[int]]) -> list[int]:
    """Follow the buckets back from the last, one table for each number of buckets."""
    stops, stop = [], len(starts[0]) - 1
    for table in reversed(starts):
        if stop > 0:
            stops.append(stop)
            stop = table[stop]
    return stops[::-1]
