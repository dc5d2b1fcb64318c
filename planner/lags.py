"""LAGS: every layer compressed as little as the best iteration time allows.

Layer-wise adaptive gradient sparsification (Shi et al. 2020) sends the top
``numel / c`` of each layer's gradient and gives every layer its own ratio c, as low as
possible: the bound on convergence grows with the cube of the largest (Corollary 2).
What "possible" means is taken here from the whole pipeline. All backward time that is
left behind a layer hides its messages, and the layers share it. The plan is the one

1. whose iteration takes no longer than the fastest plan of dense and sparse buckets
   with ratios up to c_u, plus a tolerance;
2. whose largest ratio is the smallest among those, then the next largest, and so on.

On a fast network the outcome is dense. A layer is a compute block: a module without
backward time of its own, such as a batch norm on a GPU, has the ratio of its neighbour.

How: a bound on the ratio admits dense buckets and, as fewer bytes never take longer,
sparse ones right at the bound, so the exact joint search (``joint``) tells whether a
bound leaves a plan in time; the smallest is found by bisection. From there all ratios
fall together, merged exactly (``optimal``) at every level, until the time is used up.
The buckets sent without a pause up to the end then decide, and their ratios are fixed;
those of the layers before fall on (progressive filling). At last dense and sparse
tensors are merged together, which may leave time for another round.

The largest ratio is exact up to the resolutions of both searches. The others are as
low as they can be one at a time, given which tensors are dense.

Differences from the paper: Eq. 19 lets a layer hide behind the one layer that
follows only; :mod:`comm_plan.planner.lags_literal` is that rule. The paper merges by
filling a buffer; here messages are merged exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from comm_plan.arrays import BoolArray, FloatArray, IntArray
from comm_plan.planner import joint, lags_literal, optimal
from comm_plan.planner.at_ratios import merged, merged_apart, sparse_at
from comm_plan.planner.option import Option
from comm_plan.planner.problem import Problem, Solution
from comm_plan.planner.schedule import Schedule
from comm_plan.plans.compression import TopK

PRECISION = 1e-3
"""How far above the smallest possible one a ratio may be, as a share of it."""

OWN_TIME = 0.1
"""A module with a smaller share of the mean module's backward time has none."""

ROUNDS = 8
"""How often tensors are merged again at most."""


def solve(problem: Problem) -> Solution:
    """Return the plan with the smallest ratios, largest first, in the best time.

    Raises:
        InputError: top-k or all-gather was not measured.
    """
    if problem.settings.literal:
        return lags_literal.solve(problem)
    fastest = _fastest(problem)
    fastest_s = problem.simulate(fastest).iteration_s
    limit_s = fastest_s * (1 + problem.settings.tolerance)
    solution, largest = _least_bound(problem, fastest, limit_s)
    ratios = np.where(_is_sparse(solution), largest, 1.0)
    for _ in range(ROUNDS):
        solution, lowered = _lowered(problem, solution, ratios, limit_s)
        if np.allclose(lowered, ratios, rtol=PRECISION):
            break
        ratios = lowered
        again = merged(problem, ratios)
        if problem.simulate(again).iteration_s <= limit_s:
            solution = again
    return solution


def blocks(problem: Problem) -> IntArray:
    """Return [L] the index of each tensor's compute block.

    Modules in ready order; one without backward time of its own joins the one whose
    gradients come next: the convolution before a batch norm.
    """
    stops = problem.layer_stops
    compute = problem.compute
    own_s = np.diff(compute.ready_s[stops - 1], prepend=compute.backward_start_s)
    ends_block = own_s >= OWN_TIME * own_s.mean()
    block_of_module = np.cumsum(ends_block) - ends_block
    last = block_of_module[ends_block].max(initial=0)  # nothing with time comes after
    return np.repeat(np.minimum(block_of_module, last), np.diff(stops, prepend=0))


def _fastest(problem: Problem) -> Solution:
    """Return the fastest plan with ratios up to the largest."""
    dense = problem.prices.dense
    sparse = problem.prices.option(TopK(density=1 / problem.settings.max_ratio))
    known = min(
        (optimal.fastest(problem.sent_by(option)) for option in (dense, sparse)),
        key=lambda solution: problem.simulate(solution).iteration_s,
    )
    known_s = problem.simulate(known).iteration_s
    return _within(problem, problem.settings.max_ratio, known_s) or known


def _within(problem: Problem, bound: float, limit_s: float) -> Solution | None:
    """Return the fastest plan with ratios up to ``bound``; None: all take longer."""
    options = [problem.prices.dense]
    if bound > 1:
        options.append(problem.prices.option(TopK(density=1 / bound)))
    return joint.within(problem, options, limit_s)


def _least_bound(
    problem: Problem, fastest: Solution, limit_s: float
) -> tuple[Solution, float]:
    """Return a plan in time whose largest ratio is the smallest, and that ratio.

    ``fastest``, whose ratios are the largest allowed, if no other is found.
    """
    solutions: dict[float, Solution] = {}

    def in_time(bound: float) -> bool:
        within = _within(problem, bound, limit_s)
        if within is not None:
            solutions[bound] = within
        return within is not None

    least = _smallest(in_time, problem.settings.max_ratio)
    if least not in solutions:
        in_time(least)
    return solutions.get(least, fastest), least


def _smallest(in_time: Callable[[float], bool], largest: float) -> float:
    """Return the smallest ratio from 1 to ``largest`` that is in time, as it is."""
    if in_time(1.0):
        return 1.0
    if not in_time(max(1.0, largest / (1 + PRECISION))):  # often none is smaller
        return largest
    low, high = 1.0, largest
    while high > low * (1 + PRECISION):
        middle = float(np.sqrt(low * high))
        if in_time(middle):
            high = middle
        else:
            low = middle
    return high


def _lowered(
    problem: Problem, solution: Solution, ratios: FloatArray, limit_s: float
) -> tuple[Solution, FloatArray]:
    """Let the ratios of ``solution``'s sparse tensors fall, the largest first.

    Args:
        problem: the model and the network.
        solution: buckets; what is dense in them stays so.
        ratios: [L] of each tensor; the solution is in time with them.
        limit_s: no plan shall take longer.

    Returns:
        The buckets, more of them dense than before perhaps, and the ratios.
    """
    block = blocks(problem)
    fixed = ~_is_sparse(solution)

    def at(level: float) -> tuple[Solution, FloatArray]:
        levels = np.where(fixed, ratios, np.minimum(ratios, level))
        sparse = sparse_at(problem, levels)
        merges = (merged_apart(problem, levels, sparse), solution)
        return min(
            (_dense_where_no_slower(problem, m, levels, sparse) for m in merges),
            key=lambda candidate: problem.simulate(candidate[0]).iteration_s,
        )

    def in_time(level: float) -> bool:
        return problem.simulate(at(level)[0]).iteration_s <= limit_s

    while not fixed.all():
        highest = float(ratios[~fixed].max())
        level = _smallest(in_time, highest)
        below = problem.simulate(at(max(level / (1 + PRECISION) ** 2, 1.0))[0])
        solution, ratios = at(level)
        held = _from_last_start(below) if level > 1 else np.ones_like(fixed)
        newly = ~fixed & np.isin(block, block[held])
        fixed |= newly if newly.any() else True
        fixed |= ~_is_sparse(solution)
    return _dense_where_in_time(problem, solution, ratios, limit_s)


def _from_last_start(schedule: Schedule) -> BoolArray:
    """Return [L] which tensors are in the buckets that decide when all is received.

    Those since the channel was last idle; all where compression decides.
    """
    first = len(schedule.stops) - 1
    while first > 0 and schedule.start_s[first] <= schedule.finish_s[first - 1]:
        first -= 1
    if schedule.compute_end_s >= schedule.finish_s[-1]:
        first = 0
    begin = schedule.stops[first - 1] if first else 0
    return np.arange(schedule.stops[-1]) >= begin


def _dense_where_no_slower(
    problem: Problem, solution: Solution, ratios: FloatArray, sparse: Option
) -> tuple[Solution, FloatArray]:
    """Return ``solution`` at ``ratios`` [L], dense where ``sparse`` is no faster."""
    dense = problem.prices.dense
    chosen, ratios = [], ratios.copy()
    for start, stop, option in solution.buckets():
        dense_s, sparse_s = dense.channel_s(start, stop), sparse.channel_s(start, stop)
        keeps = option.compressor.lossless or dense_s <= sparse_s
        chosen.append(dense if keeps else sparse)
        if keeps:
            ratios[start:stop] = 1.0
    return replace(solution, options=tuple(chosen)), ratios


def _dense_where_in_time(
    problem: Problem, solution: Solution, ratios: FloatArray, limit_s: float
) -> tuple[Solution, FloatArray]:
    """Make sparse buckets dense, those with the largest ratios first."""
    dense = problem.prices.dense
    buckets = [*solution.buckets()]
    ratios = ratios.copy()
    for index in sorted(
        range(len(buckets)), key=lambda b: -ratios[buckets[b][0] : buckets[b][1]].max()
    ):
        options = list(solution.options)
        options[index] = dense
        trial = replace(solution, options=tuple(options))
        if problem.simulate(trial).iteration_s <= limit_s:
            solution = trial
            ratios[buckets[index][0] : buckets[index][1]] = 1.0
    return solution, ratios


def _is_sparse(solution: Solution) -> BoolArray:
    """Return [L] which tensors are in sparse buckets."""
    sparse = [not option.compressor.lossless for option in solution.options]
    return np.repeat(sparse, np.diff(solution.stops, prepend=0))
