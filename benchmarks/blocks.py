"""What blocks of iterations tell of the variants that took turns, and how surely.

Iterations of one block are alike, as they share a moment of the machine; other blocks
of the same variant may be 5 to 9 % off. So blocks are counted and resampled, not
iterations. And the fastest of many variants is in part the luckiest: whoever is held
against it is held against luck, unless one half of the blocks chooses it and the other
says what it takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from comm_plan.arrays import FloatArray

Times = Mapping[str, Sequence[float]]
"""Seconds of each iteration of every variant, block after block."""

RESAMPLED = 10_000


def scatter(times: Times, iterations: int) -> float:
    """Return how far blocks of one variant are off each other (standard deviation).

    As a share, without what all variants of a round have in common.

    Args:
        times: of at least two variants and two blocks.
        iterations: of a block.
    """
    medians = np.array([_blocks(each, iterations) for each in times.values()])
    log = np.log(medians)
    rest = log - log.mean(axis=1, keepdims=True)
    rest -= rest.mean(axis=0)
    variants, blocks = rest.shape
    return float(np.sqrt((rest**2).sum() / ((variants - 1) * (blocks - 1))))


def ratio_between(
    times: Sequence[float], others: Sequence[float], iterations: int
) -> tuple[float, float]:
    """Return between what the ratio of medians lies in 95 % of resampled rounds.

    Args:
        times: of one variant.
        others: of another, in the same rounds.
        iterations: of a block.
    """
    blocks = [np.reshape(each, (-1, iterations)) for each in (times, others)]
    draws = np.random.default_rng(0)
    count = len(blocks[0])
    drawn = draws.integers(count, size=(RESAMPLED, count))
    medians = [np.median(each[drawn], axis=(1, 2)) for each in blocks]
    low, high = np.percentile(np.divide(*medians), (2.5, 97.5)).tolist()
    return low, high


def behind_best(times: Times, name: str, iterations: int) -> float:
    """Return what ``name`` takes over what the best takes, without the best's luck.

    The mean of two: every other pair of blocks, in one order and in the other, says
    which variant is best, and the rest what both take.

    Args:
        times: of all variants, of at least four blocks.
        name: of one of them.
        iterations: of a block.
    """
    medians = {each: _blocks(seconds, iterations) for each, seconds in times.items()}
    every_other = np.arange(len(medians[name])) // 2 % 2 == 0
    ratios = []
    for choosing in (every_other, ~every_other):
        best = min(medians, key=lambda each: float(np.median(medians[each][choosing])))
        ratios.append(
            np.median(medians[name][~choosing]) / np.median(medians[best][~choosing])
        )
    return float(np.mean(ratios))


def _blocks(seconds: Sequence[float], iterations: int) -> FloatArray:
    """Return the median of each block."""
    medians: FloatArray = np.median(np.reshape(seconds, (-1, iterations)), axis=1)
    return medians
