"""Problems in which computation and communication slow each other."""

from dataclasses import replace

from comm_plan.plans import Contention, Rates


def random_rates(rng):
    """Return rates of two that share something, or nothing."""
    compute = rng.uniform(0.2, 1)
    return Rates(compute=compute, channel=rng.uniform(1 - compute, 1))


def in_contention(problem, rng):
    """Return the problem with computation and communication in each other's way."""
    contention = Contention(
        world_size=4,
        startup=random_rates(rng),
        transfer=random_rates(rng),
        codec=random_rates(rng),
    )
    return replace(problem, compute=replace(problem.compute, contention=contention))
