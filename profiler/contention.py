"""How much computation and communication slow each other while both go on.

Both may want the same cores, memory or (NCCL) multiprocessors. So iterations run alone
and beside each of the three things that the communication thread does: messages that
only start up, messages that are long, and passes over memory as compressors make them.
What counts is backward, as nothing travels beside forward. The rates are alone over
beside each other: of backward's medians, and of the calls that went on meanwhile, each
by how much of its time it was beside backward. Calls that have to wait for a core take
many times as long as the others, and so they count as much more. Alone they are
called as they are beside, many times and by the same thread. A pass over memory takes
as long as on the rank on which it takes longest, as no message is sent before all have
encoded their part of it; the meeting behind each is no pass, and what backward loses
beside it is known from short messages. Times are means of the ranks, which may share
cores: one that had a core for itself when alone says nothing of what others take from
it, as a ratio of its own would. Of several turns the median counts.

Compression, which delays backward, may press the machine otherwise than the model does
(a replayed one sleeps). So passes over memory run in backward's place as well; of them,
which are short, the mean counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from comm_plan.arrays import FloatArray
from comm_plan.plans import Contention, PhaseRates, Rates
from comm_plan.profiler.interference import AllReduce, Codec, Job, Span, repeated
from comm_plan.profiler.timings import Trial
from comm_plan.profiler.turns import in_turns
from comm_plan.transports.base import Transport

STARTUP_NUMEL = 64
"""Elements of a message that takes no time but to start up."""

TRANSFER_NUMEL = 2**22
"""Elements of a long message, if the model is as large: what DDP merges and what plans
merge is often as long, and the longer a message, the more it pushes out of caches."""

TRANSFER_S = 0.2
"""On slow links a long message is one that takes no longer than this."""

CODEC_NUMEL = 2**22
"""Elements of what is passed over: more than caches hold, and long enough to take turns
with the computation on a core, as compressors do."""

CODEC_S = 0.02
"""Passes follow one another for so long, several times as long as the ranks then take
to meet."""

ITERATIONS = 5
"""Iterations of a turn beside each, or more, until :data:`CALLS` calls have had the
time."""

CALLS = 5
"""About so many calls of a turn at least, of each alone and beside the iterations."""

LEAST = 0.01
"""Of a rate: what stands still beside something is as good as known."""

AT_LEAST_S = 0.05
"""Passes in backward's place and calls alone go on for so long at least: for many times
as long as a thread keeps a core that others want."""


@dataclass(frozen=True)
class Worked:
    """What something beside messages took.

    Attributes:
        seconds: one time.
        spans: when it went on, at least once.
    """

    seconds: float
    spans: Sequence[Span]


class Beside(NamedTuple):
    """What a rank measured of work beside messages.

    Attributes:
        alone_s: what the work took alone.
        beside_s: what it took beside the messages.
        pace: how fast those went meanwhile; 1: as alone.
        share: of that time, in which a message was under way, and no meeting.
    """

    alone_s: float
    beside_s: float
    pace: float
    share: float


Work = Callable[[float], Worked]
"""Goes on for so many seconds at least."""


@dataclass(frozen=True)
class Messages:
    """What the communication thread does, over and over.

    Attributes:
        job: it.
        ranks: all of them.
        meet: all-reduces; where there is one, the ranks wait for each other after each
            job.
    """

    job: Job
    ranks: Transport
    meet: Job | None = None

    @contextmanager
    def go_on(self) -> Iterator[list[Span]]:
        """Go on inside the block, and fill the list behind it; a collective call."""
        spans: list[Span] = []
        with repeated(self.job, self.ranks.device, self.meet) as calls:
            yield spans
        spans += calls if self.meet is None else slowest(self.ranks, calls)

    def alone_s(self) -> float:
        """Return what a call takes while nothing else goes on, the mean."""
        long_enough_s = max(AT_LEAST_S, CALLS * _seconds(self.job))
        with self.go_on() as calls:
            time.sleep(long_enough_s)
        return float(np.mean([end - begin for begin, end in calls]))


def contention(trial: Trial, ranks: Transport, numel: int) -> Contention:
    """Return how computation and communication slow each other.

    A collective call.

    Args:
        trial: runs iterations that meet no other rank.
        ranks: the ranks; with one only there is nothing to send.
        numel: elements of the model.
    """
    passes = Codec(ranks.device, min(CODEC_NUMEL, numel))
    codec = _codec(ranks, min(CODEC_NUMEL, numel))
    with closing(ranks.duplicate()) as channel:
        jobs = {}
        startup = None
        if ranks.world_size > 1:
            startup = AllReduce(channel, min(STARTUP_NUMEL, numel))
            transfer = _transfer(channel, min(TRANSFER_NUMEL, numel))
            jobs["startup"] = Messages(startup, ranks)
            jobs["transfer"] = Messages(transfer, ranks)
        jobs["codec"] = Messages(codec, ranks, meet=startup)
        works: dict[str, Work] = {
            "computing": partial(_backward, trial),
            "compressing": partial(_compress, passes),
        }
        turns = in_turns(ranks, lambda _: _turn(works, jobs, ranks))
        of_ranks = ranks.gather_objects(turns)

    def beside(work: str) -> dict[str, Rates]:
        found: dict[str, Rates] = {}
        for job, messages in jobs.items():
            meeting = found["startup"] if messages.meet else Rates()
            measured = [[turn[work, job] for turn in own] for own in of_ranks]
            found[job] = rates(measured, meeting.compute)
        return found

    return Contention(
        world_size=ranks.world_size,
        compressing=PhaseRates(**beside("compressing")),
        **beside("computing"),
    )


def rates(of_ranks: Sequence[Sequence[Beside]], between: float = 1.0) -> Rates:
    """Return the rates of all ranks; nothing goes faster beside something else.

    Args:
        of_ranks: of each rank: what it measured in each turn, as many as the others.
        between: the rate of the work between two messages, while the ranks meet.
    """
    alone_s, beside_s, paces, shares = np.mean(of_ranks, axis=0).T
    of_both, pace, share = (
        float(np.median(each)) for each in (alone_s / beside_s, paces, shares)
    )
    work = of_both if share == 0 else (of_both - (1 - share) * between) / share
    compute, channel = np.clip([work, pace], LEAST, 1.0).tolist()
    together = min(1.0, compute + channel)
    return Rates(
        compute=min(1.0, compute / together), channel=min(1.0, channel / together)
    )


def _codec(ranks: Transport, numel: int) -> Codec:
    """Return passes over ``numel`` elements, as many on all ranks."""
    one = Codec(ranks.device, numel)
    longest_s = max(ranks.gather_objects(_warm_s(one)))
    return Codec(ranks.device, numel, math.ceil(CODEC_S / longest_s))


def _transfer(channel: Transport, numel: int) -> AllReduce:
    """Return an all-reduce of ``numel`` elements, or of fewer on a slow link."""
    while True:
        job = AllReduce(channel, numel)
        longest_s = max(channel.gather_objects(_warm_s(job)))
        if longest_s <= TRANSFER_S or numel == 1:
            return job
        numel //= 2


def _turn(
    works: Mapping[str, Work], jobs: Mapping[str, Messages], ranks: Transport
) -> dict[tuple[str, str], Beside]:
    """Return what this rank measured of each work beside each job, in one turn."""
    jobs_s = {}
    for name, messages in jobs.items():
        ranks.barrier()
        jobs_s[name] = messages.alone_s()
    beside = {}
    for what, work in works.items():
        ranks.barrier()
        alone_s = work(0.0).seconds
        for name, messages in jobs.items():
            ranks.barrier()
            with messages.go_on() as calls:
                worked = work(CALLS * jobs_s[name])
            beside[what, name] = Beside(
                alone_s,
                worked.seconds,
                pace(jobs_s[name], calls, worked.spans),
                share_of(calls, worked.spans),
            )
    return beside


def slowest(ranks: Transport, calls: Sequence[Span]) -> list[Span]:
    """Return the calls, each as long as on the rank on which it took longest.

    A collective call; there are equally many on all ranks.
    """
    begin, end = np.array(calls).T
    longest_s = np.max(ranks.gather_objects(end - begin), axis=0)
    return list(zip(begin.tolist(), (begin + longest_s).tolist(), strict=True))


def pace(alone_s: float, calls: Sequence[Span], spans: Sequence[Span]) -> float:
    """Return how fast ``calls`` went within ``spans``; 1: as alone, also if none did.

    Args:
        alone_s: what a call takes alone.
        calls: when they went on, each as fast in its first half as in its second.
        spans: no two at the same time.
    """
    within_s = _within_s(calls, spans)
    some = within_s > 0
    if not some.any():
        return 1.0
    done = within_s[some] / np.diff(calls)[some, 0]
    return float(alone_s * done.sum() / within_s.sum())


def share_of(calls: Sequence[Span], spans: Sequence[Span]) -> float:
    """Return the share of ``spans`` in which one of ``calls`` went on.

    Args:
        calls: no two at the same time.
        spans: likewise, and at least one.
    """
    whole_s = sum(last - first for first, last in spans)
    return float(_within_s(calls, spans).sum()) / whole_s


def _within_s(calls: Sequence[Span], spans: Sequence[Span]) -> FloatArray:
    """Return how much of each call was within the spans, [calls] seconds."""
    begin, end = np.array(calls or [(0.0, 0.0)]).T
    within_s: FloatArray = sum(
        np.clip(np.minimum(end, last) - np.maximum(begin, first), 0.0, None)
        for first, last in spans
    )
    return within_s


def _backward(trial: Trial, at_least_s: float) -> Worked:
    """Run iterations; what counts is backward, the median."""
    until_s = time.perf_counter() + at_least_s
    spans: list[Span] = []
    while len(spans) < ITERATIONS or time.perf_counter() < until_s:
        timings = trial.run(1, 0)
        started_s = time.perf_counter() - timings.total_s[0]
        begin_s = started_s + timings.forward_s[0]
        spans.append((begin_s, begin_s + timings.backward_s[0]))
    return Worked(float(np.median([end - begin for begin, end in spans])), spans)


def _compress(passes: Job, at_least_s: float) -> Worked:
    """Pass over memory, again and again; one pass counts, the mean."""
    begin_s = time.perf_counter()
    count, end_s = 0, begin_s
    while end_s - begin_s < max(AT_LEAST_S, at_least_s):
        passes(False)
        count += 1
        end_s = time.perf_counter()
    return Worked((end_s - begin_s) / count, [(begin_s, end_s)])


def _warm_s(job: Job) -> float:
    """Return what ``job`` takes once it has been done."""
    return min(_seconds(job), _seconds(job))


def _seconds(job: Job) -> float:
    begin_s = time.perf_counter()
    job(False)
    return time.perf_counter() - begin_s
