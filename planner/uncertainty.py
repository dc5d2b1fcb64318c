"""How far a prediction may be off, from how far its inputs scatter.

A prediction is a median, made of medians. It is made again with the computation as slow
as in the slowest twentieth of the profiled iterations, and again with every collective
as slow as in the slowest twentieth of its repetitions. The two are independent of each
other; within each everything is slow at once. So the expected error is the root of the
sum of the squares of what each adds, scaled from the 95th percentile to one standard
deviation of a normal distribution. It tells of scatter, not of what the model lacks.
"""

from __future__ import annotations

import math

from comm_plan.planner.problem import Problem, Solution
from comm_plan.planner.schedule import Compute, simulate
from comm_plan.plans.network import CollectiveCost, Network
from comm_plan.plans.profile import Profile, Spread

P95_DEVIATIONS = 1.645
"""The 95th percentile of a normal distribution, in standard deviations."""


def slow_profile(profile: Profile) -> Profile | None:
    """Return the profile of the slowest twentieth of iterations; None: not known."""
    if profile.forward_spread is None or profile.backward_spread is None:
        return None
    return profile.slower(
        forward=_ratio(profile.forward_spread, profile.forward_s),
        backward=_ratio(profile.backward_spread, profile.backward_s),
    )


def slow_network(network: Network) -> Network | None:
    """Return the network in its slowest twentieth of repetitions; None: not known."""
    collectives = {name: _slow(cost) for name, cost in network.collectives.items()}
    if all(not cost.samples for cost in collectives.values()):
        return None
    return network.model_copy(update={"collectives": collectives})


def expected_error_s(problem: Problem, solution: Solution) -> float | None:
    """Return the expected error of the predicted iteration time; None: not known.

    Args:
        problem: what was solved.
        solution: its buckets.
    """
    prices = problem.prices
    slow: list[tuple[Profile | None, Network | None]] = [
        (slow_profile(prices.profile), prices.network),
        (prices.profile, slow_network(prices.network)),
    ]
    expected_s = problem.simulate(solution).iteration_s
    added_s = [
        _iteration_s(problem, solution, profile, network) - expected_s
        for profile, network in slow
        if profile is not None and network is not None
    ]
    return math.hypot(*added_s) / P95_DEVIATIONS if added_s else None


def _iteration_s(
    problem: Problem, solution: Solution, profile: Profile, network: Network
) -> float:
    """Return what ``solution`` would take at other costs."""
    prices = problem.prices.at(profile, network)
    priced = {
        key: prices.option(option.compressor, option.collective)
        for key, option in {id(option): option for option in solution.options}.items()
    }
    options = tuple(priced[id(option)] for option in solution.options)
    times = Solution(solution.stops, options).times()
    steps = problem.settings.round_steps
    compute = Compute.of(profile, problem.world_size, steps)
    return simulate(compute, solution.stops, times).iteration_s


def _slow(cost: CollectiveCost) -> CollectiveCost:
    samples = tuple(
        sample.model_copy(update={"median_s": max(sample.median_s, sample.p95_s)})
        for sample in cost.samples
    )
    return cost.model_copy(update={"samples": samples})


def _ratio(spread: Spread, median_s: float) -> float:
    return max(1.0, spread.p95_s / median_s) if median_s > 0 else 1.0
