"""Problems in which computation and communication slow each other."""

from dataclasses import replace

from comm_plan.plans import Contention, PhaseRates, Rates


def random_rates(rng):
    """Return rates of two that share something, or nothing."""
    compute = rng.uniform(0.2, 1)
    return Rates(compute=compute, channel=rng.uniform(1 - compute, 1))


def in_contention(problem, rng):
    """Return the problem with computation and communication in each other's way."""
    computing, compressing = (
        {name: random_rates(rng) for name in PhaseRates.model_fields} for _ in range(2)
    )
    contention = Contention(
        world_size=4, compressing=PhaseRates(**compressing), **computing
    )
    return replace(problem, compute=replace(problem.compute, contention=contention))
