"""The recurrence of exact merging, and two ways to evaluate it.

With ``r_j`` the time when gradient j can be sent, S prefix sums of bytes, T any
non-decreasing cost, and f(j) the earliest time by which the first j gradients can all
have been sent::

    f(0) = 0
    f(j) = min over i < j of  max(f(i), r_j) + T(S_j - S_i)

Sending an earlier prefix sooner never delays what follows, so f(L) is the optimum over
all sets of contiguous buckets. What is added per tensor (decoding) changes nothing.

With at most b buckets it is the same, only that what comes before has one bucket less::

    f_b(j) = min over i < j of  max(f_{b-1}(i), r_j) + T(S_j - S_i)

``by_search`` evaluates either as it stands, O(L^2), vectorised, for any cost.

``by_deques`` takes a piecewise affine T of K pieces and needs O(L K). f does not
decrease, for a bucket without its last gradient is sent no later, so at each j

1. of all i with ``f(i) <= r_j`` the largest is best: all start at r_j and it sends the
   least. A pointer to it only moves forward;
2. of the others, those whose message falls on piece k cost
   ``f(i) - b_k S_i + (a_k + b_k S_j)``. They form a window both of whose ends only
   move forward, and its minimum is kept in a monotone deque, one for each piece.

One line (``T(n) = a + b n``) is K = 1. Every measured curve is piecewise affine, so no
network needs the quadratic form.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from comm_plan.arrays import FloatArray, IntArray
from comm_plan.planner.curve import CostCurve
from comm_plan.planner.option import Option

BucketSeconds = Callable[[IntArray, int], FloatArray]
"""``(starts, stop) -> seconds`` of the buckets ``start..stop``, non-increasing."""


@dataclass(frozen=True)
class Merges:
    """The best last bucket of every prefix of n gradients.

    Attributes:
        finish: [n + 1] the earliest time by which a prefix is sent; inf: never.
        start: [n + 1] where the last bucket of each prefix starts.
    """

    finish: list[float]
    start: list[int]

    def stops(self) -> list[int]:
        """Return the buckets of all gradients, followed back from the last."""
        stops = []
        stop = len(self.start) - 1
        while stop > 0:
            stops.append(stop)
            stop = self.start[stop]
        return stops[::-1]


def merge(
    ready_s: FloatArray,
    option: Option,
    first: int,
    free: float = 0.0,
    before: Sequence[float] | None = None,
) -> Merges:
    """Merge the tensors from ``first`` on that all travel by ``option``.

    Args:
        ready_s: [n] when each can be sent.
        option: how they travel; its arrays are over the whole model.
        first: the model's index of the first of them.
        free: when the channel is free for them.
        before: [n + 1] the finish of every prefix with one bucket less, the first entry
            instead of ``free``; None: as many buckets as is best.
    """
    if len(option.legs) > 1 or option.gathers_rows(first):
        return by_search(
            ready_s,
            lambda starts, stop: option.channel_s(first + starts, first + stop),
            free,
            before,
        )
    leg, inside = option.legs[0], slice(first, first + len(ready_s) + 1)
    curve = leg.curve.raised(option.bucket_s)
    return by_deques(
        ready_s, leg.nbytes[inside], curve, option.codec_s[inside], free, before
    )


def by_search(
    ready_s: FloatArray,
    seconds: BucketSeconds,
    free: float = 0.0,
    before: Sequence[float] | None = None,
) -> Merges:
    """Merge optimally under any cost, in O(n^2).

    Args:
        ready_s: [n] when each gradient can be sent, non-decreasing.
        seconds: the cost of buckets; less for a bucket that holds less.
        free: when the channel is free.
        before: as for :func:`merge`.
    """
    finish = np.empty(len(ready_s) + 1)
    finish[0] = free
    source = finish if before is None else np.asarray(before)
    previous = [0]
    for stop, ready in enumerate(ready_s.tolist(), start=1):
        starts = np.arange(stop)
        ends = np.maximum(source[:stop], ready) + seconds(starts, stop)
        best = int(np.argmin(ends))
        finish[stop] = ends[best]
        previous.append(best)
    return Merges(finish.tolist(), previous)


def by_deques(
    ready_s: FloatArray,
    nbytes: FloatArray,
    curve: CostCurve,
    added_s: FloatArray,
    free: float = 0.0,
    before: Sequence[float] | None = None,
) -> Merges:
    """Merge optimally under a piecewise affine cost of K pieces, in O(n K).

    Args:
        ready_s: [n] when each gradient can be sent, non-decreasing.
        nbytes: [n + 1] prefix sums of bytes.
        curve: the cost of a bucket's bytes.
        added_s: [n + 1] prefix sums of what each tensor adds to its bucket's time.
        free: when the channel is free.
        before: as for :func:`merge`.
    """
    size, added = nbytes.tolist(), added_s.tolist()
    pieces = [_Piece(*piece, size, added) for piece in _bounds(curve)]
    finish, previous = [free], [0]
    source = finish if before is None else before
    idle = -1  # the largest i with source[i] <= ready: case 1
    for stop, ready in enumerate(ready_s.tolist(), start=1):
        while idle + 1 < stop and source[idle + 1] <= ready:
            idle += 1
        best, end = max(idle, 0), float("inf")
        if idle >= 0:
            piece = pieces[bisect_right(curve.starts, size[stop] - size[idle]) - 1]
            end = piece.end(ready, idle, stop)
        for piece in pieces:
            if idle + 1 == stop or size[stop] - size[idle + 1] < piece.low:
                break
            start = piece.best(source, idle + 1, stop)
            if start is not None:
                later = piece.end(source[start], start, stop)
                if later < end:
                    best, end = start, later
        finish.append(end)
        previous.append(best)
    return Merges(finish, previous)


class _Piece:
    """Case 2 for the messages of one piece of the cost: a sliding window's minimum."""

    def __init__(
        self,
        low: float,
        high: float,
        alpha_s: float,
        beta_s_per_byte: float,
        size: list[float],
        added: list[float],
    ) -> None:
        self.low = low
        self._high = high
        self._alpha_s = alpha_s
        self._beta = beta_s_per_byte
        self._size = size
        self._added = added
        self._entered = 0
        self._window: deque[tuple[float, int]] = deque()  # keys increase

    def end(self, at: float, start: int, stop: int) -> float:
        """Return when the bucket ``start..stop`` is received if sent ``at``."""
        nbytes = self._size[stop] - self._size[start]
        added = self._added[stop] - self._added[start]
        return at + self._alpha_s + self._beta * nbytes + added

    def best(self, finish: Sequence[float], first: int, stop: int) -> int | None:
        """Return the best start in ``first..stop`` whose message is on this piece."""
        size, window = self._size, self._window
        start = max(self._entered, first)
        while start < stop and size[stop] - size[start] >= self.low:
            key = finish[start] - self._beta * size[start] - self._added[start]
            while window and window[-1][0] >= key:
                window.pop()
            window.append((key, start))
            start += 1
        self._entered = start
        while window and (
            window[0][1] < first or size[stop] - size[window[0][1]] >= self._high
        ):
            window.popleft()
        return window[0][1] if window else None


def _bounds(curve: CostCurve) -> Iterator[tuple[float, float, float, float]]:
    lows = curve.starts.tolist()
    yield from zip(
        lows,
        [*lows[1:], float("inf")],
        curve.alpha_s.tolist(),
        curve.beta_s_per_byte.tolist(),
        strict=True,
    )
