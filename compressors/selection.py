"""The k largest magnitudes, exactly, in one pass that also adds the gradient.

On CPU ``torch.topk`` and a full partition are an order of magnitude slower than memory.
Here the data is read once:

1. The last selection leaves a threshold that half as many elements again as wanted
   should exceed now. Before the first one, or where fewer than k exceed it, a
   sample of runs of neighbouring elements (whole cache lines) gives one.
2. Chunk by chunk, while the chunk is in cache: add the gradient to the residual and
   collect what exceeds the threshold, in one loop where Numba compiles it. When far
   more are collected than expected, only the largest k so far are kept, and the
   smallest of them is the new threshold.
3. A partition of the few candidates selects exactly k. Had fewer than k elements
   exceeded the sampled threshold too, the pass is repeated without one.

Sampling for the threshold is what the LAGS paper does; here the threshold decides how
long it takes, never what is selected. Of equal magnitudes the lowest indices win,
so the result is a function of the data alone, which a bitwise resume needs. Selected
elements leave in ascending order of index, and are set to zero in the residual.

On CUDA the Triton kernel of :mod:`~comm_plan.compressors.triton_selection` does the
same from :data:`SMALL_ON_GPU` elements on. Of smaller tensors, where launching its
parts would take longest, and where Triton is missing, ``torch.topk`` selects: of equal
magnitudes any, but of equal data always the same; below :data:`SMALL_NUMEL` elements a
stable sort, which takes the first. :class:`Stretches` selects from many tensors with
one sort.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from comm_plan.compressors.chunks import CHUNK_NUMEL
from comm_plan.compressors.loops import loops

Floats: TypeAlias = npt.NDArray[np.float32]
Integers: TypeAlias = npt.NDArray[np.intp]
Selection: TypeAlias = tuple[torch.Tensor, torch.Tensor]

SMALL_NUMEL = 1 << 13  # below, what goes over everything is quicker than parts
SMALL_ON_GPU = 1 << 22  # an estimate: a dozen kernels take 0.3 ms to launch there
HIGH_DENSITY = 0.125  # above, candidates are too many to be worth collecting

SAMPLED_ABOVE = 128  # how many sampled elements should exceed the true threshold
SAMPLE_RUN = 16  # floats in a cache line
SAMPLE_SHARE = 1 / 32  # never sample more than this share of the elements
SAMPLE_SIGMAS = 4.0  # how far below its estimate the threshold is put

MAGNITUDE_BITS = (1 << 31) - 1  # of a float32; as integers they are in order

EVERYTHING = -1.0  # the threshold that every magnitude exceeds
WANTED_PER_K = 1.5  # how many elements should exceed the threshold in the next step
FEWEST_PER_K, MOST_PER_K = 0.5, 8.0  # how many may when it is set
NEAREST, FURTHEST = -1.0, 4.0  # how far below the k-th magnitude, over the last one


def accumulate_and_select(
    residual: torch.Tensor, gradient: torch.Tensor, k: int, state: Any = None
) -> Selection:
    """Add ``gradient`` to ``residual`` and take out the ``k`` largest magnitudes.

    Args:
        residual: [numel] float32, contiguous, finite; changed in place: the gradient is
            added, then what is selected is set to zero.
        gradient: [numel], contiguous; float32, float16 or bfloat16.
        k: how many elements to select, 1 <= k <= numel.
        state: the :func:`fresh_state` of this residual, kept from step to step; it
            makes the selection faster and changes no result.

    Returns:
        values [k] float32 and indices [k] int32, by ascending index.
    """
    if residual.is_cuda:
        kernel = _triton()
        if kernel is None or residual.numel() < SMALL_ON_GPU:
            return _with_torch(residual, gradient, k)
        selection: Selection = kernel.accumulate_and_select(
            residual, gradient, k, state
        )
        return selection
    array = residual.numpy()
    indices = _choose(array, gradient.float().numpy(), k, state)
    values = array[indices]
    array[indices] = 0
    return torch.from_numpy(values), torch.from_numpy(indices.astype(np.int32))


def choose(values: torch.Tensor, k: int) -> torch.Tensor:
    """Return the ascending int32 indices [k] of the largest magnitudes of ``values``.

    Args:
        values: [numel] float32, contiguous, finite; only read.
        k: how many, 0 <= k <= numel.
    """
    if k == 0:
        return torch.empty(0, dtype=torch.int32, device=values.device)
    if values.is_cuda:
        return values.abs().topk(k, sorted=False).indices.sort().values.int()
    return torch.from_numpy(_choose(values.numpy(), None, k).astype(np.int32))


class Stretches:
    """Which elements of tensors that lie end to end are to be selected, of each.

    Args:
        numels: of the tensors.
        ks: how many to select of each, 1 <= k <= numel.
        device: where they are.
    """

    def __init__(
        self, numels: Sequence[int], ks: Sequence[int], device: torch.device
    ) -> None:
        self._numel = sum(numels)
        self._numels = torch.tensor(numels, device=device)
        self._first_keys = torch.arange(len(ks), device=device) << 32
        counts = torch.tensor(ks, device=device)
        self._starts = (self._numels.cumsum(0) - self._numels).repeat_interleave(counts)
        before = (counts.cumsum(0) - counts).repeat_interleave(counts)
        self._ranked = self._starts + torch.arange(sum(ks), device=device) - before

    def take(self, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the largest magnitudes of each tensor out of ``residual``, at once.

        One sort of all of them, by tensor and then by magnitude; of equal magnitudes
        the first. Nothing waits for the device.

        Args:
            residual: [sum of numels] float32, contiguous; what is selected is set to 0.

        Returns:
            values [sum of ks] float32 and where they were [sum of ks] int64, ascending.
        """
        keys = self._first_keys.repeat_interleave(self._numels, output_size=self._numel)
        keys -= residual.view(torch.int32) & MAGNITUDE_BITS
        order = keys.sort(stable=True).indices
        chosen = order[self._ranked].sort().values
        values = residual[chosen]
        residual.index_fill_(0, chosen, 0.0)
        return values, chosen

    def within(self, chosen: torch.Tensor) -> torch.Tensor:
        """Return the indices into each tensor, int32, of those into all of them."""
        return (chosen - self._starts).int()

    def across(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the indices into all tensors, int64, of those into each."""
        return indices + self._starts


@dataclass
class LastSelection:
    """What a selection on the CPU leaves for the next one of the same residual.

    Attributes:
        threshold: where that begins; None: with a sample.
        per_k: how many times k elements exceeded it.
    """

    threshold: float | None = None
    per_k: float = WANTED_PER_K


def fresh_state(device: torch.device) -> Any:
    """Return what the selection on ``device`` remembers of a tensor; None: nothing."""
    if device.type != "cuda":
        return LastSelection()
    kernel = _triton()
    return None if kernel is None else kernel.SelectionState.fresh(device)


def largest(values: Floats, k: int) -> Integers:
    """Return the ascending indices of the ``k`` largest magnitudes of ``values``.

    Of equal magnitudes the lowest indices are taken.
    """
    if k == values.size:
        return np.arange(k)
    magnitudes = np.abs(values)
    smallest = _kth_largest(magnitudes, k)
    keep = magnitudes > smallest
    ties = np.flatnonzero(magnitudes == smallest)
    keep[ties[: k - np.count_nonzero(keep)]] = True
    return np.flatnonzero(keep)


def _kth_largest(magnitudes: Floats, k: int) -> np.float32:
    """Return the k-th largest.

    It is looked for from the other end: NumPy takes up to 60 times as long where most
    of what lies below is equal, and behind a ReLU most of a gradient is zero.
    """
    negative: np.float32 = np.partition(-magnitudes, k - 1)[k - 1]
    return -negative


def _choose(
    residual: Floats,
    gradient: Floats | None,
    k: int,
    state: LastSelection | None = None,
) -> Integers:
    """Add the gradient, where given, and return where the largest are, ascending."""
    if residual.size < SMALL_NUMEL or k > HIGH_DENSITY * residual.size:
        if gradient is not None:
            np.add(residual, gradient, out=residual)
        return largest(residual, k)
    known = None if state is None else state.threshold
    threshold = _sampled_threshold(residual, gradient, k) if known is None else known
    candidates = _filter(residual, gradient, k, threshold)
    if state is not None and known is not None:
        state.per_k = _next_per_k(state.per_k, candidates.found, k)
    if candidates.count < k and known is not None:
        candidates = _filter(residual, None, k, _sampled_threshold(residual, None, k))
    if candidates.count < k:
        candidates = _filter(residual, None, k, EVERYTHING)
    begin, count = float(candidates.threshold), candidates.count
    indices = candidates.select()
    if state is not None:
        smallest = float(candidates.threshold)
        state.threshold = _next_threshold(begin, count, smallest, k, state.per_k)
    return indices


def _next_per_k(per_k: float, found: int, k: int) -> float:
    """Return how many times k to be at :data:`WANTED_PER_K` in the next step.

    Args:
        per_k: how many times k elements exceeded the threshold when it was set.
        found: how many did a step later.
        k: how many are selected.
    """
    wanted = per_k * WANTED_PER_K * k / max(found, 1)
    return min(max(wanted, FEWEST_PER_K), MOST_PER_K)


def _next_threshold(
    begin: float, count: int, smallest: float, k: int, per_k: float
) -> float:
    """Return what ``per_k`` times k elements would have exceeded.

    As if the logarithm of their number fell linearly with the magnitude.

    Args:
        begin: what ``count`` elements exceeded.
        count: at least k.
        smallest: the k-th magnitude.
        k: how many were selected.
        per_k: more than 0.
    """
    further = math.log(per_k) / max(math.log(count / k), 1e-9)
    further = min(max(further, NEAREST), FURTHEST)
    return max(0.0, smallest - further * (smallest - max(begin, 0.0)))


def _sampled_threshold(residual: Floats, gradient: Floats | None, k: int) -> float:
    """Return a magnitude that more than ``k`` elements of the sum probably exceed."""
    numel = residual.size
    wanted = min(SAMPLED_ABOVE * numel / k, SAMPLE_SHARE * numel)
    runs = max(1, int(wanted) // SAMPLE_RUN)
    stride = numel // runs

    def sample(array: Floats) -> Floats:
        return array[: runs * stride].reshape(runs, stride)[:, :SAMPLE_RUN]

    sampled = sample(residual)
    if gradient is not None:
        sampled = sampled + sample(gradient)
    magnitudes = np.abs(sampled).ravel()
    above = magnitudes.size * k / numel
    rank = min(magnitudes.size, int(above + SAMPLE_SIGMAS * above**0.5) + 1)
    return float(_kth_largest(magnitudes, rank))


def _filter(
    residual: Floats, gradient: Floats | None, k: int, threshold: float
) -> _Candidates:
    """Add the gradient, where given, and collect what may be among the largest k."""
    candidates = _Candidates(k, threshold)
    compiled = loops(torch.device("cpu"))
    above = _above if compiled is None else compiled.above
    scratch = np.empty(CHUNK_NUMEL, np.intp)
    for start in range(0, residual.size, CHUNK_NUMEL):
        chunk = residual[start : start + CHUNK_NUMEL]
        part = None if gradient is None else gradient[start : start + CHUNK_NUMEL]
        positions = above(chunk, part, candidates.threshold, scratch)
        candidates.extend(start, chunk, positions)
    return candidates


def _above(
    values: Floats, gradient: Floats | None, threshold: np.float32, scratch: Integers
) -> Integers:
    """Add the gradient, where given, and return where magnitudes exceed a threshold."""
    if gradient is not None:
        np.add(values, gradient, out=values)
    magnitudes = np.abs(values, out=scratch.view(np.float32)[: values.size])
    return (magnitudes > threshold).nonzero()[0]


class _Candidates:
    """The elements above a rising threshold, by ascending index.

    Attributes:
        threshold: once k elements are known that reach it, a later one must exceed it.
        count: how many elements are held.
        found: how many were, also those that are not any more.
    """

    def __init__(self, k: int, threshold: float) -> None:
        self.threshold = np.float32(threshold)
        self.count = 0
        self.found = 0
        self._k = k
        self._limit = 4 * k + CHUNK_NUMEL // 4
        self._values: list[Floats] = []
        self._indices: list[Integers] = []

    def extend(self, start: int, chunk: Floats, positions: Integers) -> None:
        """Take the elements at ``positions`` of the chunk that begins at ``start``."""
        self._values.append(chunk[positions])
        self._indices.append(positions + start)
        self.count += positions.size
        self.found += positions.size
        if self.count > self._limit:
            self._shrink()

    def select(self) -> Integers:
        """Return the indices of the largest k, ascending."""
        self._shrink()
        return self._indices[0]

    def _shrink(self) -> None:
        values = np.concatenate(self._values)
        keep = largest(values, self._k)
        self._values = [values[keep]]
        self._indices = [np.concatenate(self._indices)[keep]]
        self.count = self._k
        self.threshold = np.abs(self._values[0]).min()


@cache
def _triton() -> Any:
    """Return the module of the CUDA kernel, None where Triton is not installed."""
    if find_spec("triton") is None:
        return None
    return import_module("comm_plan.compressors.triton_selection")


def _with_torch(residual: torch.Tensor, gradient: torch.Tensor, k: int) -> Selection:
    residual.add_(gradient)
    magnitudes = residual.abs()
    if residual.numel() < SMALL_NUMEL:  # of equal ones the first, as elsewhere
        chosen = magnitudes.sort(descending=True, stable=True).indices[:k]
    else:
        chosen = magnitudes.topk(k, sorted=False).indices
    indices = chosen.sort().values
    values = residual[indices]
    residual.index_fill_(0, indices, 0.0)  # to assign 0 would wait for the device
    return values, indices.int()
