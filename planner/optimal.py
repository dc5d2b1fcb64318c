"""Exact merging: the fastest of all ways to merge neighbouring gradients.

With ``r_j`` the time when gradient j can be sent, S prefix sums of bytes, T any
non-decreasing cost, and f(j) the earliest time by which the first j gradients can all
have been sent::

    f(0) = 0
    f(j) = min over i < j of  max(f(i), r_j) + T(S_j - S_i)

Sending an earlier prefix sooner never delays what follows, so f(L) is the optimum over
all sets of contiguous buckets. What is added per tensor (decoding) changes nothing.

``by_search`` evaluates this as it stands, O(L^2), vectorised, for any cost.

``by_deques`` takes a piecewise affine T of K pieces and needs O(L K). f does not
decrease, so at each j

1. of all i with ``f(i) <= r_j`` the largest is best: all start at r_j and it sends the
   least. A pointer to it only moves forward;
2. of the others, those whose message falls on piece k cost
   ``f(i) - b_k S_i + (a_k + b_k S_j)``. They form a window both of whose ends only
   move forward, and its minimum is kept in a monotone deque, one for each piece.

One line (``T(n) = a + b n``) is K = 1. Every measured curve is piecewise affine, so no
network needs the quadratic form.

The greedy rule of MG-WFBP, which its paper calls optimal, does not
find this optimum: with backward times (layer 1 to 3) = (2, 1, 1), sizes 1 and
T(n) = 2 + n it ends at 9, merging {3, 2}; {3}, {2, 1} ends at 8.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from comm_plan.planner.curve import CostCurve, FloatArray, IntArray
from comm_plan.planner.option import Option
from comm_plan.planner.problem import Problem, Solution

BucketSeconds = Callable[[IntArray, int], FloatArray]
"""``(starts, stop) -> seconds`` of the buckets ``start..stop``, non-increasing."""


def solve(problem: Problem) -> Solution:
    """Return the fastest buckets for how each tensor travels."""
    stops: list[int] = []
    free = 0.0
    for run in problem.runs:
        ready = problem.sendable_s[run.start : run.stop]
        merged, free = merge(ready, run.option, run.start, free)
        stops += [run.start + stop for stop in merged]
    return problem.solution(stops)


def merge(
    ready_s: FloatArray, option: Option, first: int, free: float
) -> tuple[list[int], float]:
    """Merge the tensors from ``first`` on that all travel by ``option``.

    Args:
        ready_s: [n] when each can be sent.
        option: how they travel; its arrays are over the whole model.
        first: the model's index of the first of them.
        free: when the channel is free for them.

    Returns:
        The buckets' stops, from 1 to n, and when the last one is received.
    """
    if len(option.legs) > 1:
        return by_search(
            ready_s,
            lambda starts, stop: option.channel_s(first + starts, first + stop),
            free,
        )
    leg, inside = option.legs[0], slice(first, first + len(ready_s) + 1)
    return by_deques(
        ready_s, leg.nbytes[inside], leg.curve, option.codec_s[inside], free
    )


def by_search(
    ready_s: FloatArray, seconds: BucketSeconds, free: float = 0.0
) -> tuple[list[int], float]:
    """Merge optimally under any cost, in O(L^2).

    Args:
        ready_s: [L] when each gradient can be sent, non-decreasing.
        seconds: the cost of buckets; less for a bucket that holds less.
        free: when the channel is free.

    Returns:
        The buckets' stops, and when the last one is received.
    """
    finish = np.empty(len(ready_s) + 1)
    finish[0] = free
    previous = [0]
    for stop, ready in enumerate(ready_s.tolist(), start=1):
        starts = np.arange(stop)
        ends = np.maximum(finish[:stop], ready) + seconds(starts, stop)
        best = int(np.argmin(ends))
        finish[stop] = ends[best]
        previous.append(best)
    return _stops(previous), float(finish[-1])


def by_deques(
    ready_s: FloatArray,
    nbytes: FloatArray,
    curve: CostCurve,
    added_s: FloatArray,
    free: float = 0.0,
) -> tuple[list[int], float]:
    """Merge optimally under a piecewise affine cost of K pieces, in O(L K).

    Args:
        ready_s: [L] when each gradient can be sent, non-decreasing.
        nbytes: [L + 1] prefix sums of bytes.
        curve: the cost of a bucket's bytes.
        added_s: [L + 1] prefix sums of what each tensor adds to its bucket's time.
        free: when the channel is free.

    Returns:
        As :func:`by_search`.
    """
    size, added = nbytes.tolist(), added_s.tolist()
    pieces = [_Piece(*piece, size, added) for piece in _bounds(curve)]
    finish, previous = [free], [0]
    idle = -1  # the largest i with finish[i] <= ready: case 1
    for stop, ready in enumerate(ready_s.tolist(), start=1):
        while idle + 1 < stop and finish[idle + 1] <= ready:
            idle += 1
        best, end = idle, float("inf")
        if idle >= 0:
            piece = pieces[bisect_right(curve.starts, size[stop] - size[idle]) - 1]
            end = piece.end(ready, idle, stop)
        for piece in pieces:
            if idle + 1 == stop or size[stop] - size[idle + 1] < piece.low:
                break
            start = piece.best(finish, idle + 1, stop)
            if start is not None:
                later = piece.end(finish[start], start, stop)
                if later < end:
                    best, end = start, later
        finish.append(end)
        previous.append(best)
    return _stops(previous), finish[-1]


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

    def best(self, finish: list[float], first: int, stop: int) -> int | None:
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


def _stops(previous: list[int]) -> list[int]:
    """Follow the chosen starts back from the last prefix."""
    stops = []
    stop = len(previous) - 1
    while stop > 0:
        stops.append(stop)
        stop = previous[stop]
    return stops[::-1]
