"""Sparse methods send more in the first epochs of a run: the warm-up of densities.

It is given as the density of each of these epochs, or as how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from comm_plan.errors import InputError
from comm_plan.plans import Plan

DensityWarmup = Sequence[float] | int

GTOPK_WARMUP = (0.25, 0.0725, 0.015, 0.004)
"""Densities of the first epochs (gTop-k paper, section IV-B)."""


def parse(text: str) -> DensityWarmup:
    """Return what ``0.25,0.1``, ``paper`` or a number of epochs mean.

    Raises:
        InputError: no numbers, or such as are no densities.
    """
    if text == "paper":
        return GTOPK_WARMUP
    if text.isdecimal():
        return int(text)
    try:
        densities = tuple(map(float, text.split(",")))
    except ValueError:
        densities = ()
    if not densities or not all(0 < density <= 1 for density in densities):
        raise InputError(
            f"--density-warmup {text!r}: give densities above 0 and at most 1, "
            "comma-separated, 'paper', or a number of epochs"
        )
    return densities


def density_in(epoch: int, warmup: DensityWarmup, plan: Plan) -> float:
    """Return the lowest density of ``epoch``; 0: the warm-up is over.

    Where only their number W is given, densities fall evenly, by a factor an epoch, to
    the lowest of ``plan``, rho: that of epoch e is rho^((e + 1) / (W + 1)) (Deep
    Gradient Compression, section 3.3).
    """
    epochs = warmup if isinstance(warmup, int) else len(warmup)
    if epoch >= epochs:
        return 0.0
    if not isinstance(warmup, int):
        return warmup[epoch]
    lowest = min(min(bucket.densities) for bucket in plan.buckets)
    return math.pow(lowest, (epoch + 1) / (warmup + 1))
