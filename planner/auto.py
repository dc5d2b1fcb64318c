"""Auto: the least compression that reaches the best iteration time, if it pays.

1. ``joint`` finds the fastest plan over all allowed compressors, collectives and, for
   sparse methods, a grid of densities. What is allowed unless it is named follows from
   what was measured of each method's accuracy (``evidence``).
2. Where it does not take ``min_gain`` less time than the plan of ``optimal``, which is
   dense, that is taken.
3. Convergence suffers from the largest ratio (LAGS, Corollary 2: with its cube). So
   the smallest ratio is looked for to which all buckets can be limited while a plan
   within the tolerance of the best time remains; that plan is taken.
4. In reality every message wakes threads up, and ranks wait for each other in it. So
   neighbours are merged where one option, no more compressing than the most there is,
   keeps the plan within the tolerance.
5. Then bucket by bucket, the most compressed first, each is given the least compressing
   option that keeps the plan within the tolerance.
6. If all are dense by then, the plan of ``optimal`` is taken, which has fewer buckets,
   if it is within the tolerance too.

Steps 1 and 3 are exact on the menu up to a ten-thousandth of the iteration time for
each bucket (see ``joint``), and, for models of more than 128 tensors, over 128 places
where buckets may end, spread evenly over bytes and time. Steps 4 and 5 are greedy. On a
fast network the outcome is a dense plan: then compression does not pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import numpy as np

from comm_plan.errors import InputError
from comm_plan.planner import joint, low_rank, optimal
from comm_plan.planner.evidence import SLACK
from comm_plan.planner.option import Option
from comm_plan.planner.problem import Problem, Solution
from comm_plan.plans.compression import BY_DEFAULT, PowerSgd, Spec, method


def solve(problem: Problem) -> Solution:
    """Return the least compressing plan within the tolerance of the fastest.

    Or that of ``optimal``, where compression does not gain enough.

    Raises:
        InputError: the user allows a method that cannot be priced.
    """
    options = menu(problem)
    known = min(
        (optimal.fastest(problem.sent_by(option)) for option in options),
        key=lambda solution: _seconds(problem, solution),
    )
    fastest = joint.within(problem, options, _seconds(problem, known)) or known
    fastest_s = _seconds(problem, fastest)
    dense = optimal.solve(problem.dense)
    if fastest_s > _seconds(problem, dense) * (1 - problem.settings.min_gain):
        return dense
    limit = fastest_s * (1 + problem.settings.tolerance)
    least = _least_ratio(problem, options, limit) or fastest
    merged = _merged(problem, least, options, limit)
    relaxed = _relaxed(problem, merged, options, limit)
    if any(option is not problem.prices.dense for option in relaxed.options):
        return relaxed
    return dense if _seconds(problem, dense) <= limit else relaxed


def menu(problem: Problem) -> list[Option]:
    """Return what buckets may use by ratio, dense (always allowed) first.

    A method that may leave nothing out is not there, also where it has a variant that
    keeps everything: dense does the same for less.

    Raises:
        InputError: the user allows a method that cannot be priced.
    """
    asked = problem.settings.allow
    options = [problem.prices.dense]
    for name in BY_DEFAULT if asked is None else asked:
        named, collective = method(name)
        limit = problem.settings.ratio_limit(name)
        if limit <= 1:
            continue
        for spec in map(problem.prices.expected, named.variants(limit)):
            if spec.lossless or spec.ratio > limit * SLACK:
                continue
            try:
                options.append(_priced(problem, spec, collective))
            except InputError:
                if asked is not None:
                    raise
    return sorted(options, key=lambda option: option.ratio)


def _priced(problem: Problem, spec: Spec, collective: str) -> Option:
    """Return ``spec`` as it is meant for the model's tensors, priced.

    PowerSGD with a rank for each layer, where the profile knows their errors.

    Raises:
        InputError: a cost is missing.
    """
    prices = problem.prices
    if isinstance(spec, PowerSgd):
        assert isinstance(spec.rank, int)
        sent = compress(prices.profile.tensors, prices.allowed(spec))
        if low_rank.is_known(spec.rank, sent):
            spec = spec.model_copy(update={"bytes_of": spec.rank})
    return prices.fitted(spec, collective)


def _least_ratio(
    problem: Problem, options: Sequence[Option], limit_s: float
) -> Solution | None:
    """Return a plan within ``limit_s`` whose largest ratio is the smallest possible."""
    ratios = sorted({option.ratio for option in options})
    least = None
    low, high = 0, len(ratios)
    while low < high:
        middle = (low + high) // 2
        mild = [option for option in options if option.ratio <= ratios[middle]]
        within_limit = joint.within(problem, mild, limit_s)
        if within_limit is None:
            low = middle + 1
        else:
            high, least = middle, within_limit
    return least


def _merged(
    problem: Problem, solution: Solution, options: Sequence[Option], limit_s: float
) -> Solution:
    """Merge neighbours, from the first bucket on, where that keeps within ``limit_s``.

    By options up to the largest ratio in ``solution``.
    """
    largest = max(option.ratio for option in solution.options)
    mild = [option for option in options if option.ratio <= largest]
    bucket = 0
    while bucket + 1 < len(solution.options):
        merged = _as_one(problem, solution, bucket, bucket + 2, mild, limit_s)
        if merged is None:
            bucket += 1
        else:
            solution = merged
    return solution


def _relaxed(
    problem: Problem, solution: Solution, options: Sequence[Option], limit_s: float
) -> Solution:
    """Give each bucket the least compressing option that keeps within ``limit_s``."""
    ratios = [option.ratio for option in solution.options]
    for bucket in sorted(range(len(ratios)), key=lambda b: -ratios[b]):
        milder = [option for option in options if option.ratio < ratios[bucket]]
        relaxed = _as_one(problem, solution, bucket, bucket + 1, milder, limit_s)
        solution = relaxed or solution
    return solution


def _as_one(
    problem: Problem,
    solution: Solution,
    start: int,
    stop: int,
    options: Sequence[Option],
    limit_s: float,
) -> Solution | None:
    """Return ``solution`` with its buckets ``start`` up to ``stop`` as one.

    By the first of ``options`` that keeps within ``limit_s``; None: none does, or their
    dtypes differ.
    """
    first, end = int(solution.starts[start]), int(solution.stops[stop - 1])
    if len(set(problem.dtypes[first:end])) > 1:
        return None
    stops = np.delete(solution.stops, range(start, stop - 1))
    before, after = solution.options[:start], solution.options[stop:]
    for option in options:
        if option.allowed[first:end].all():
            trial = Solution(stops, (*before, option, *after))
            if _seconds(problem, trial) <= limit_s:
                return trial
    return None


def _seconds(problem: Problem, solution: Solution) -> float:
    return problem.simulate(solution).iteration_s
