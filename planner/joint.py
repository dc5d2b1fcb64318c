"""Joint planning: where buckets end and how each travels, decided together, exactly.

Compression runs on the compute stream and delays the rest of backward, so a choice
made early has two effects, and a state after a prefix of the gradients is a pair:
``x``, the compression time spent so far (the compute clock is ready time + x), and
``f``, when the channel has finished. Bucket ``i..j`` with option o leads from (x, f) to

    x' = x + compress_o(i..j)
    f' = max(f, r_j + x' + handoff_j) + communicate_o(i..j) + codec_o(i..j)

A state that is not better in either is never needed, for with both smaller the same
buckets end no later: only the Pareto frontier of each prefix is kept. The answer is the
state of the whole model with the smallest ``max(backward end + x, f)``.

Where computation and communication slow each other (``schedule``), the second line
takes longer by the channel's share of it, and what the computation loses meanwhile is
added to x' afterwards. (Of two that share something, neither gains by waiting, as their
rates together are at least 1.) When the computation will end depends on compression
that is not decided yet: the rest is taken to travel as this bucket does, where that is
allowed. With one option for each tensor this is exact. Among several another plan may
be faster than the one found: of 400 random models of up to three tensors, whose
compression takes as long as their communication, in four, by 2 % at most.

O(L^2) pairs of prefixes times options times frontier points, vectorised over all but
one L. States that cannot end within ``limit_s`` any more are dropped. ``resolution_s``
above 0 also drops states whose f is better by less than that, which makes the result
worse by at most so much for each bucket of the best plan; with 0 it is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from comm_plan.arrays import FloatArray, IntArray
from comm_plan.planner.option import Option
from comm_plan.planner.problem import Problem, Solution
from comm_plan.planner.schedule import ROUNDING, beside, phases
from comm_plan.plans.profile import PhaseRates

MOST_CUTS = 128
"""Larger models are cut at so many places only, to bound the planning time."""

RESOLUTION = 1e-4
"""Of the limit: how exact :func:`within` is for each bucket."""

WEIGHTS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Of compute against channel, for the bounds on what a state can still reach."""


@dataclass(frozen=True, eq=False)
class _States:
    """Pareto-minimal states of all prefixes so far, N in all, prefix by prefix.

    Attributes:
        x: [N] seconds by which the computation is late: compression, contention.
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

    def at(self, chosen: IntArray) -> _States:
        """Return the states with these indices."""
        return _States(
            self.x[chosen],
            self.f[chosen],
            self.prefix[chosen],
            self.parent[chosen],
            self.option[chosen],
        )


@dataclass(frozen=True, eq=False)
class _Way:
    """How buckets from each of S places to each of as many may travel.

    Attributes:
        which: the option's index.
        option: it.
        first: [S] the first place from which a bucket may go to each.
        startup_s, travel_s, codec_s: [S, S] seconds of the channel, from and to each.
        ahead_s: [L + 1] of compression taken to follow.
        rates: of computation and messages beside each other, if all travels so.
    """

    which: int
    option: Option
    first: IntArray
    startup_s: FloatArray
    travel_s: FloatArray
    codec_s: FloatArray
    ahead_s: FloatArray
    rates: PhaseRates | None

    def places(self, to: int) -> slice:
        """Return from where a bucket may go to place ``to``."""
        return slice(int(self.first[to]), to + 1)


def _ways(
    problem: Problem, options: Sequence[Option], begins: IntArray, ends: IntArray
) -> list[_Way]:
    """Return how buckets may travel that begin at ``begins`` and end at ``ends``."""
    ahead = _compression_ahead(options)
    ways = []
    for which, (option, ahead_s) in enumerate(zip(options, ahead, strict=True)):
        earliest = _earliest_starts(problem, option)[ends - 1]
        phases_s = option.phases_s(begins[:, None], ends[None, :])
        rates = problem.compute.rates_beside(float(ahead_s[0]))
        first = np.searchsorted(begins, earliest)
        ways.append(_Way(which, option, first, *phases_s, ahead_s, rates))
    return ways


def best(
    problem: Problem,
    options: Sequence[Option],
    limit_s: float = float("inf"),
    resolution_s: float = 0.0,
    cuts: IntArray | None = None,
) -> Solution | None:
    """Return the fastest buckets and options together.

    Args:
        problem: the model and the network.
        options: what each bucket may use.
        limit_s: only plans whose iteration takes no longer are of interest.
        resolution_s: 0: exact; else see the module.
        cuts: where buckets may end, increasing, the last one L; None: anywhere.

    Returns:
        None if no plan keeps within ``limit_s``, or a tensor is allowed in no option.
    """
    ends = np.arange(1, len(problem) + 1) if cuts is None else cuts
    begins = np.concatenate([[0], ends[:-1]])
    ways = _ways(problem, options, begins, ends)
    limit = (limit_s - problem.compute.update_s) * (1 + ROUNDING)
    rest = _least_rest(ways, begins, ends)
    none = np.zeros(1, dtype=np.int64)
    states = _States(np.zeros(1), np.zeros(1), none, none, none)
    for to, stop in enumerate(ends.tolist()):
        reached = _joined(
            [_extend(problem, states, way, begins, to, stop) for way in ways]
        )
        promising = _promising(problem, reached, rest[:, stop], limit)
        states = _joined([states, _frontier(promising, resolution_s)])
    last = states.since(len(problem))
    if last == len(states.x):
        return None
    compute_end = problem.compute.backward_end_s + states.x[last:]
    fastest = np.argmin(np.maximum(compute_end, states.f[last:]))
    return _trace(states, last + int(fastest), options)


def within(
    problem: Problem, options: Sequence[Option], limit_s: float
) -> Solution | None:
    """Return the fastest plan that takes no longer than ``limit_s``, in bounded time.

    To :data:`RESOLUTION` of the limit for each bucket, with buckets that end at
    :func:`cuts`. None: there is no such plan.
    """
    where = cuts(problem, options)
    found = best(problem, options, limit_s, RESOLUTION * limit_s, where)
    if found is None:
        return None
    iteration_s = problem.simulate(found).iteration_s
    return found if iteration_s <= limit_s * (1 + ROUNDING) else None


def cuts(problem: Problem, options: Sequence[Option]) -> IntArray:
    """Return about ``MOST_CUTS`` places at most where buckets may end.

    Everywhere in a small model. In a larger one wherever a dtype or what is allowed
    changes, and the last of each cell when the model is divided evenly by bytes, ready
    time and number of tensors.
    """
    every = np.arange(1, len(problem) + 1)
    if len(every) <= MOST_CUTS:
        return every
    kinds = [*zip(problem.dtypes, *(option.allowed for option in options), strict=True)]
    forced = [i for i in every[:-1] if kinds[i] != kinds[i - 1]]
    ready_s = problem.compute.ready_s
    nbytes = np.cumsum(problem.nbytes) / problem.nbytes.sum()
    place = (nbytes + ready_s / max(ready_s[-1], 1e-12) + every / len(every)) / 3
    cells = np.ceil(place * MOST_CUTS - 1e-9)
    ends = every[np.diff(cells, append=np.inf) > 0]
    return np.union1d(forced, ends).astype(np.int64)


def _extend(
    problem: Problem, states: _States, way: _Way, begins: IntArray, to: int, stop: int
) -> _States:
    """Send ``start..stop`` by ``way`` from every state of each start that it allows.

    Args:
        problem: the model and the network.
        states: all so far.
        way: how.
        begins: [S] where buckets may begin.
        to: the place of ``stop``.
        stop: where they end.
    """
    option = way.option
    starts = begins[way.places(to)]
    compute_s = problem.compute.backward_end_s + way.ahead_s[stop]
    begin = states.since(int(starts[0])) if len(starts) else len(states.x)
    prefix = states.prefix[begin:]
    x = states.x[begin:] + (option.compress_s[stop] - option.compress_s[prefix])
    handoff = problem.compute.handoffs_s[stop - 1]
    ready = problem.compute.ready_s[stop - 1] + x + handoff
    f = np.maximum(states.f[begin:], ready)
    here = np.searchsorted(begins, prefix)
    channel = (each[here, to] for each in (way.startup_s, way.travel_s, way.codec_s))
    for seconds, rates in phases(way.rates, *channel):
        left = np.maximum(0.0, compute_s + x - f)
        takes, loses = beside(seconds, left, rates, np.minimum)
        f, x = f + takes, x + loses
    return _States(
        x,
        f,
        np.full(len(x), stop),
        np.arange(begin, begin + len(x)),
        np.full(len(x), way.which),
    )


def _joined(parts: Sequence[_States]) -> _States:
    return _States(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.f for part in parts]),
        np.concatenate([part.prefix for part in parts]),
        np.concatenate([part.parent for part in parts]),
        np.concatenate([part.option for part in parts]),
    )


def _promising(
    problem: Problem, states: _States, rest: FloatArray, limit: float
) -> _States:
    """Return the states that may still end within ``limit``.

    Args:
        problem: the model and the network.
        states: of one prefix.
        rest: [W] of :func:`_least_rest` for it.
        limit: when computation and channel shall have ended.
    """
    if not np.isfinite(limit):
        return states
    compute = problem.compute
    last = compute.ready_s[-1] + compute.handoffs_s[-1] + states.x
    weights = np.array(WEIGHTS)[:, None]
    ends = weights * last + (1 - weights) * states.f + rest[:, None]
    keep = (compute.backward_end_s + states.x <= limit) & (ends <= limit).all(axis=0)
    return states.at(np.flatnonzero(keep))


def _frontier(states: _States, resolution_s: float) -> _States:
    """Return the Pareto-minimal states."""
    order = np.lexsort((states.f, states.x))
    lowest = np.minimum.accumulate(states.f[order])
    if resolution_s > 0:
        lowest = np.floor(lowest / resolution_s)
    return states.at(order[np.diff(lowest, prepend=np.inf) < 0])


def _least_rest(ways: Sequence[_Way], begins: IntArray, ends: IntArray) -> FloatArray:
    """Return what sending the tensors from each on costs at least, weighted.

    A plan ends no sooner than its last bucket after all compression, and no sooner
    than all its channel time after f. Hence no sooner than any weighted mean of both,

        w (r_L + x + rest of x + last bucket) + (1 - w) (f + rest of channel time),

    of which the parts that lie ahead are minimised here over all plans, regardless of
    ready times.

    Returns:
        [W, L + 1] for each weight and each prefix that is sent already.
    """
    tensors = int(ends[-1])
    rest = np.full((len(WEIGHTS), tensors + 1), np.inf)
    rest[:, tensors] = 0.0
    weights = np.array(WEIGHTS)[:, None]
    channels = [way.startup_s + way.travel_s + way.codec_s for way in ways]
    for to, stop in reversed(list(enumerate(ends.tolist()))):
        on_channel = 1.0 if stop == tensors else 1 - weights
        for way, channel_s in zip(ways, channels, strict=True):
            begin = begins[way.places(to)]
            compress_s = way.option.compress_s
            compress = compress_s[stop] - compress_s[begin]
            cost = weights * compress + on_channel * channel_s[way.places(to), to]
            rest[:, begin] = np.minimum(rest[:, begin], cost + rest[:, [stop]])
    return rest


def _compression_ahead(options: Sequence[Option]) -> list[FloatArray]:
    """Return, for each option, [L + 1] how long the tensors from each on compress.

    By that option, and where it is not allowed by the first that is.
    """
    each = [np.diff(option.compress_s) for option in options]
    allowed = [option.allowed for option in options]
    otherwise = np.select(allowed, each)
    ahead = []
    for own, may in zip(each, allowed, strict=True):
        rest = np.cumsum(np.where(may, own, otherwise)[::-1])[::-1]
        ahead.append(np.append(rest, 0.0))
    return ahead


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
