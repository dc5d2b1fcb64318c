"""LAGS as printed: every layer at the smallest ratio that hides behind the next one.

Shi et al., "Layer-wise Adaptive Gradient Sparsification for Distributed Deep Learning
with Convergence Guarantees" (2020). Each layer sends the top ``numel / c`` of its
gradient, with the smallest ratio c that hides: sparsification and communication must
fit in the backward time of the layer that follows (Eq. 19)::

    c = min(c_u, min { c | t_comm(c) + t_spar(c) <= t_comp of the next layer })

The layer whose gradient comes last has nothing to hide behind and gets c_u. A ratio of
1 is dense: all-reduce, no selection. Sparse messages of neighbouring tensors then
travel in one buffer where that is faster; each tensor keeps its own k, and a small
dense one between them may send all its elements along.

A module without backward time of its own, such as a batch norm, is a layer here too,
and what comes before it can hide nothing: most of a convolutional network is then sent
at c_u, on fast networks as well. :mod:`comm_plan.planner.lags` is what is meant.

Differences from the paper: it prints ``max{c_u, ...}`` and calls c_u an upper bound, so
min is meant. Ratios are looked for on a grid of 128 from 1 to c_u in geometric
progression. The paper merges by filling a buffer; here the messages are merged exactly
(``optimal``, ``joint``).
"""

from __future__ import annotations

import numpy as np

from comm_plan.arrays import FloatArray, IntArray
from comm_plan.planner.at_ratios import merged
from comm_plan.planner.option import Option
from comm_plan.planner.problem import Problem, Solution
from comm_plan.plans.compression import Dense, TopK

RATIOS = 128


def solve(problem: Problem) -> Solution:
    """Return every layer at its smallest hidden ratio, exactly merged.

    Raises:
        InputError: top-k or all-gather was not measured.
    """
    return merged(problem, ratio_per_tensor(problem))


def ratio_per_tensor(problem: Problem) -> FloatArray:
    """Return [L] the ratio c of Eq. 19 of each tensor's layer; 1 where it is dense."""
    largest = problem.settings.max_ratio
    stops = problem.layer_stops
    starts = np.concatenate([[0], stops[:-1]])
    hidden = np.diff(problem.compute.ready_s[stops - 1], append=-np.inf)
    ratios = np.full(len(stops), largest)
    open_ = np.ones(len(stops), dtype=np.bool_)
    for ratio in np.geomspace(1, largest, RATIOS).tolist():
        fits = open_ & (_seconds(_option(problem, ratio), starts, stops) <= hidden)
        ratios[fits] = ratio
        open_ &= ~fits
        if not open_.any():
            break
    each = np.repeat(ratios, stops - starts)
    sparse = problem.prices.option(TopK(density=1 / largest))
    return np.where(sparse.allowed, each, 1.0)


def _option(problem: Problem, ratio: float) -> Option:
    spec = Dense() if ratio == 1 else TopK(density=1 / ratio)
    return problem.prices.option(spec)


def _seconds(option: Option, starts: IntArray, stops: IntArray) -> FloatArray:
    compress = option.compress_s[stops] - option.compress_s[starts]
    return compress + option.channel_s(starts, stops)
