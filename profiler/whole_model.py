"""A method's costs over a whole model, and how many times as long it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from comm_plan.arrays import non_decreasing
from comm_plan.collectives.collective import Codings
from comm_plan.plans import CompressionCost


def at_density(
    costs: Sequence[CompressionCost], density: float
) -> list[CompressionCost]:
    """Return those at ``density``, by size."""
    alike = [cost for cost in costs if cost.density == density]
    return sorted(alike, key=lambda cost: cost.numel)


def in_all(
    numels: Sequence[int],
    costs: Sequence[CompressionCost],
    seconds: Callable[[CompressionCost], float],
) -> float:
    """Return the seconds of all tensors together, interpolated as the planner does.

    Args:
        numels: of the tensors.
        costs: at one density, by size.
        seconds: which of a cost's seconds.
    """
    sizes = [cost.numel for cost in costs]
    told_s = non_decreasing(np.array([seconds(cost) for cost in costs]))
    return float(np.sum(np.interp(numels, sizes, told_s)))


def codec_in_all(
    numels: Sequence[int],
    costs: Sequence[CompressionCost],
    coded: Codings,
    *,
    momentum_correction: bool = False,
) -> float:
    """Return what the communication thread takes for all tensors, in one bucket.

    Args:
        numels: of the tensors.
        costs: at one density, by size.
        coded: how often messages are encoded and decoded.
        momentum_correction: momentum is applied before compression.
    """

    def codec_s(cost: CompressionCost) -> float:
        return cost.codec_s(
            coded.decoded, coded.encoded, momentum_correction=momentum_correction
        )

    return in_all(numels, costs, codec_s) + costs[0].bucket_s(coded.encoded)


def times_as_long(seen_s: float, told_s: float) -> float:
    """Return how many times as long it takes; 1 where that cannot be said."""
    return seen_s / told_s if seen_s > 0 and told_s > 0 else 1.0
