"""Joint planning: where buckets end and how each travels, decided together, exactly.

Compression runs on the compute stream and delays the rest of backward, so a choice
made early has two effects, and a state after a prefix of the gradients is a pair:
``x``, the compression time spent so far (the compute clock is ready time + x), and
``f``, when the channel has finished. Bucket ``i..j`` with option o leads from (x, f) to

    x' = x + compress_o(i..j)
    f' = max(f, r_j + x') + communicate_o(i..j) + decompress_o(i..j)

Both are non-decreasing in x and f, so a state that is not better in either is never
needed: only the Pareto frontier of each prefix is kept. The answer is the state of the
whole model with the smallest ``max(backward end + x, f)``.

O(L^2) pairs of prefixes times options times frontier points, vectorised over all but
one L. States that already exceed a known plan's end are dropped. ``resolution_s`` above
0 also drops states whose f is better by less than that, which makes the result worse
by at most L times as much; with 0 it is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from comm_plan.planner.curve import FloatArray, IntArray
from comm_plan.planner.option import Option
from comm_plan.planner.problem import Problem, Solution


@dataclass(frozen=True, eq=False)
class _States:
    """Pareto-minimal states of all prefixes so far, N in all, prefix by prefix.

    Attributes:
        x: [N] compression seconds spent.
        f: [N] when the channel has finished.
        prefix: [N] how many tensors are sent.
        parent: [N] the state before the last bucket.
        option: [N] index of the last bucket's option.
    """

    x: FloatArray
    f: FloatArray
    prefix: IntArray
    parent: IntArray
    option: IntArray

    def since(self, prefix: int) -> int:
        """Return the first state of ``prefix`` or later."""
        return int(np.searchsorted(self.prefix, prefix))

    def plus(self, more: _States) -> _States:
        """Return both, ``more`` after this."""
        return _States(
            np.concatenate([self.x, more.x]),
            np.concatenate([self.f, more.f]),
            np.concatenate([self.prefix, more.prefix]),
            np.concatenate([self.parent, more.parent]),
            np.concatenate([self.option, more.option]),
        )

    def at(self, chosen: IntArray) -> _States:
        """Return the states with these indices."""
        return _States(
            self.x[chosen],
            self.f[chosen],
            self.prefix[chosen],
            self.parent[chosen],
            self.option[chosen],
        )


def best(
    problem: Problem,
    options: Sequence[Option],
    limit_s: float = float("inf"),
    resolution_s: float = 0.0,
) -> Solution | None:
    """Return the fastest buckets and options together.

    Args:
        problem: the model and the network.
        options: what each bucket may use.
        limit_s: only plans whose iteration takes no longer are of interest.
        resolution_s: 0: exact; else see the module.

    Returns:
        None if no plan keeps within ``limit_s``, or a tensor is allowed in no option.
    """
    earliest = [_earliest_starts(problem, option) for option in options]
    limit = (limit_s - problem.compute.update_s) * (1 + 1e-12)
    none = np.zeros(1, dtype=np.int64)
    states = _States(np.zeros(1), np.zeros(1), none, none, none)
    for stop in range(1, len(problem) + 1):
        reached = [
            _extend(problem, states, which, option, int(starts[stop - 1]), stop)
            for which, (option, starts) in enumerate(
                zip(options, earliest, strict=True)
            )
        ]
        states = states.plus(_frontier(problem, _joined(reached), limit, resolution_s))
    last = states.since(len(problem))
    if last == len(states.x):
        return None
    ends = np.maximum(problem.compute.backward_end_s + states.x[last:], states.f[last:])
    return _trace(states, last + int(np.argmin(ends)), options)


def _extend(
    problem: Problem, states: _States, which: int, option: Option, first: int, stop: int
) -> _States:
    """Send ``i..stop`` by ``option`` from every state of the prefixes i >= first."""
    begin = states.since(first)
    prefix = states.prefix[begin:]
    x = states.x[begin:] + (option.compress_s[stop] - option.compress_s[prefix])
    seconds = option.channel_s(np.arange(first, stop), stop)
    ready = problem.compute.ready_s[stop - 1] + x
    f = np.maximum(states.f[begin:], ready) + seconds[prefix - first]
    return _States(
        x,
        f,
        np.full(len(x), stop),
        np.arange(begin, begin + len(x)),
        np.full(len(x), which),
    )


def _joined(reached: Sequence[_States]) -> _States:
    joined = reached[0]
    for states in reached[1:]:
        joined = joined.plus(states)
    return joined


def _frontier(
    problem: Problem, states: _States, limit: float, resolution_s: float
) -> _States:
    """Return the Pareto-minimal states that can still end within ``limit``."""
    end = np.maximum(problem.compute.backward_end_s + states.x, states.f)
    states = states.at(np.flatnonzero(end <= limit))
    states = states.at(np.lexsort((states.f, states.x)))
    lowest = np.minimum.accumulate(states.f)
    if resolution_s > 0:
        lowest = np.floor(lowest / resolution_s)
    better = np.diff(lowest, prepend=np.inf) < 0
    return states.at(np.flatnonzero(better))


def _earliest_starts(problem: Problem, option: Option) -> IntArray:
    """Return [L]: the first tensor of the longest bucket that ends with each tensor.

    One past the tensor itself where the option is not allowed for it.
    """
    starts, start = [], 0
    for index, allowed in enumerate(option.allowed.tolist()):
        if not allowed:
            start = index + 1
        elif index and problem.dtypes[index] != problem.dtypes[index - 1]:
            start = index
        starts.append(start)
    return np.array(starts)


def _trace(states: _States, index: int, options: Sequence[Option]) -> Solution:
    stops, chosen = [], []
    while states.prefix[index] > 0:
        stops.append(int(states.prefix[index]))
        chosen.append(options[states.option[index]])
        index = int(states.parent[index])
    return Solution(np.array(stops[::-1]), tuple(chosen[::-1]))
