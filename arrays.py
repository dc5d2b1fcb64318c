"""Types of NumPy arrays, and what planner and profiler both do with some."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

SHORTEST_S = 1e-12
"""What a time of 0 counts as where its logarithm is wanted."""


def non_decreasing(seconds: FloatArray) -> FloatArray:
    """Pool adjacent violators: the non-decreasing fit of the logarithms.

    Args:
        seconds: [N] what growing sizes took, which only chance makes fall.
    """
    pools: list[tuple[float, int]] = []
    for value in np.log(np.maximum(seconds, SHORTEST_S)):
        mean, count = float(value), 1
        while pools and pools[-1][0] > mean:
            previous, weight = pools.pop()
            mean = (previous * weight + mean * count) / (weight + count)
            count += weight
        pools.append((mean, count))
    means, counts = zip(*pools, strict=True)
    pooled = np.repeat(np.exp(np.array(means)), counts)
    return np.where(seconds > 0, pooled, np.minimum(pooled, seconds.max()))
