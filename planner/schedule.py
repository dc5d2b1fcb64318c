"""The timeline of one iteration under a plan: the one simulator that all share.

Gradients become ready in a fixed order on the compute stream. A bucket is a contiguous
run of them. Compressing a bucket occupies the compute stream and so delays the rest of
backward; buckets then pass one channel, first in, first out. The channel is the network
and the thread that serves it, which encodes what it sends and decodes what it receives
before it takes the next bucket::

    ready_b  = backward up to the bucket's last tensor + compression up to here
    start_b  = max(finish of the bucket before, ready_b + handoff_b)
    finish_b = start_b + communicate_b + codec_b
    iteration = max(end of the compute stream, last finish) + update

For dense buckets all but communication is free unless a profile says otherwise. This
is Eq. 6 to 8 of the MG-WFBP paper, with Eq. 20 for merged layers, for any cost.

Where a profile knows how computation and communication slow each other
(``Contention``), every message has three phases one after another: it starts up, its
bytes travel, it is decoded. While a phase and the computation go on beside each other,
both proceed at the rates measured for that kind of phase; what the computation loses
delays every gradient that is not ready yet. (For ``start_b`` a gradient that gets ready
within a message counts as ready that much later; it waits for the message anyway, and
``handoff_b`` at most too long.) For a rate of 1 all is as above. Beside
compression the rates may be others than beside the model's own backward: they are
mixed by how much there is of both, as if compression were spread evenly over backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from comm_plan.arrays import FloatArray, IntArray
from comm_plan.plans.profile import Contention, PhaseRates, Profile, Rates

Number = TypeVar("Number", float, FloatArray)

ROUNDING = 1e-9
"""Numbers that differ by a smaller share are equal."""

ALONE = Rates()
"""Nothing slows anything."""


@dataclass(frozen=True)
class Compute:
    """One iteration's computation without communication.

    Attributes:
        ready_s: [L] when each gradient is ready, from the start of the iteration,
            forward included.
        backward_end_s: when backward ends, on the same clock.
        update_s: duration of the optimizer's step.
        handoff_s: from when a bucket is ready to when a sleeping thread takes it.
        taken_over: at the end of backward who waits takes what that thread has not.
        contention: how computation and communication slow each other; None: not.
        backward_start_s: when backward begins, on the same clock.
        waiting_s: what of that the ranks wait for each other.
    """

    ready_s: FloatArray
    backward_end_s: float
    update_s: float
    handoff_s: float = 0.0
    taken_over: bool = False
    contention: Contention | None = None
    backward_start_s: float = 0.0
    waiting_s: float = 0.0

    @classmethod
    def of(cls, profile: Profile, world_size: int, local_steps: int = 1) -> Compute:
        """Return the computation that ``profile`` measured.

        One rank waits for nobody, however many were profiled. It is the computation
        between two exchanges: of ``local_steps`` iterations, if there are several.
        What is sent behind other gradients is ready no earlier than they are.
        """
        waiting_s = profile.waiting_s if world_size > 1 else 0.0
        begin_s = waiting_s + profile.forward_s
        each_s = np.array([tensor.ready_s for tensor in profile.tensors])
        ready_s = begin_s + np.maximum.accumulate(each_s)
        each = cls(
            ready_s=ready_s,
            backward_end_s=max(begin_s + profile.backward_s, float(ready_s[-1])),
            update_s=profile.update_s,
            handoff_s=profile.handoff_s,
            taken_over=profile.device.type == "cpu",
            contention=profile.contention,
            backward_start_s=begin_s,
            waiting_s=waiting_s,
        )
        return each if local_steps == 1 else each._of_round(local_steps)

    def _of_round(self, steps: int) -> Compute:
        """Return the computation of so many iterations, at whose end all is sent.

        The ranks wait for each other once.
        """
        alone_s = self.backward_end_s - self.waiting_s + self.update_s
        end_s = self.waiting_s + steps * alone_s
        return replace(
            self,
            ready_s=np.full_like(self.ready_s, end_s),
            backward_end_s=end_s,
            update_s=0.0,
            backward_start_s=end_s,
        )

    @cached_property
    def handoffs_s(self) -> FloatArray:
        """[L] until an idle channel takes a bucket that ends with this gradient."""
        backward_left_s = self.backward_end_s - self.ready_s
        longest_s = backward_left_s if self.taken_over else np.inf
        return np.minimum(np.full_like(self.ready_s, self.handoff_s), longest_s)

    def rates_beside(self, compress_s: float) -> PhaseRates | None:
        """Return how this and messages slow each other; None: not.

        Args:
            compress_s: what the plan compresses within backward.
        """
        contention = self.contention
        if contention is None or contention.compressing is None or not compress_s:
            return contention
        backward_s = self.backward_end_s - self.backward_start_s
        share = compress_s / (backward_s + compress_s)
        other = contention.compressing
        return PhaseRates(
            startup=_mixed(contention.startup, other.startup, share),
            transfer=_mixed(contention.transfer, other.transfer, share),
            codec=_mixed(contention.codec, other.codec, share),
        )


@dataclass(frozen=True, eq=False)
class BucketTimes:
    """Seconds that each bucket takes if nothing slows it, [B] each.

    Attributes:
        compress_s: of the compute stream.
        startup_s: of the network, however few bytes there were.
        transfer_s: of the network, for the bytes.
        codec_s: of the communication thread: encoding and decoding.
    """

    compress_s: FloatArray
    startup_s: FloatArray
    transfer_s: FloatArray
    codec_s: FloatArray

    @property
    def communicate_s(self) -> FloatArray:
        """[B] seconds of the network."""
        return self.startup_s + self.transfer_s

    @property
    def without_network(self) -> BucketTimes:
        """The times if communication were free."""
        free = np.zeros_like(self.codec_s)
        return BucketTimes(self.compress_s, free, free, self.codec_s)


@dataclass(frozen=True, eq=False)
class Schedule:
    """When what happens, in seconds from the start of the iteration.

    Attributes:
        stops: [B] index after the last tensor of each bucket.
        times: the durations that led here.
        ready_s: [B] when each bucket is compressed and ready to send.
        start_s: [B] when the channel takes it.
        finish_s: [B] when it is communicated and decoded.
        compute_end_s: when backward and all compression end.
        slowdown: [B] how many times as long as alone the channel is busy with each.
        iteration_s: the whole iteration.
        exposed_s: iteration_s minus that of the same plan with free communication; 0
            where that is less, as decoding may then slow more of the computation.
    """

    stops: IntArray
    times: BucketTimes
    ready_s: FloatArray
    start_s: FloatArray
    finish_s: FloatArray
    compute_end_s: float
    slowdown: FloatArray
    iteration_s: float
    exposed_s: float


def simulate(compute: Compute, stops: IntArray, times: BucketTimes) -> Schedule:
    """Return the timeline of the buckets that end at ``stops`` [B]."""
    passage = _pass(compute, stops, times)
    free = _pass(compute, stops, times.without_network)
    alone_s = times.communicate_s + times.codec_s
    busy_s = passage.finish_s - passage.start_s
    return Schedule(
        stops=stops,
        times=times,
        ready_s=passage.ready_s,
        start_s=passage.start_s,
        finish_s=passage.finish_s,
        compute_end_s=passage.compute_end_s,
        slowdown=np.divide(
            busy_s, alone_s, out=np.ones_like(busy_s), where=alone_s > 0
        ),
        iteration_s=passage.end_s + compute.update_s,
        exposed_s=max(0.0, passage.end_s - free.end_s),
    )


def beside(
    seconds: Number,
    left_s: Number,
    rates: Rates,
    least: Callable[[Number, Number], Number],
) -> tuple[Number, Number]:
    """Let the channel be busy while the computation goes on.

    Args:
        seconds: how long, if nothing else went on.
        left_s: of computation from then on, alone; 0 or more.
        rates: of both beside each other.
        least: returns the smaller of two: ``min`` or ``numpy.minimum``.

    Returns:
        Seconds that it takes, and seconds that the computation loses.
    """
    both_s = least(seconds / rates.channel, left_s / rates.compute)
    return seconds + (1 - rates.channel) * both_s, (1 - rates.compute) * both_s


def _mixed(most: Rates, other: Rates, share: float) -> Rates:
    """Return the rates of computation of which ``share`` goes by those of ``other``."""
    most_s, other_s = (1 - share) / most.compute, share / other.compute
    share_of_time = other_s / (most_s + other_s)
    return Rates(
        compute=1 / (most_s + other_s),
        channel=(1 - share_of_time) * most.channel + share_of_time * other.channel,
    )


def phases(
    rates: PhaseRates | None, startup: Number, transfer: Number, codec: Number
) -> tuple[tuple[Number, Rates], ...]:
    """Return what the channel does one after another, each with its rates.

    Args:
        rates: of what goes on beside it; None: nothing slows anything.
        startup: seconds in which messages start up.
        transfer: seconds in which their bytes travel.
        codec: seconds of encoding and decoding.
    """
    if rates is None:
        return ((startup + transfer + codec, ALONE),)
    return (
        (startup, rates.startup),
        (transfer, rates.transfer),
        (codec, rates.codec),
    )


def lower_bound_s(
    compute: Compute, nbytes: IntArray, world_size: int, link_bytes_per_s: float
) -> float:
    """Return a time that no dense plan beats on links of that speed.

    From any gradient's ready time on, it and all later ones still have to pass the
    link, ``2(P-1)/P`` times their bytes each (section "lower bound" of the docs).

    Args:
        compute: the iteration's computation.
        nbytes: [L] bytes of each gradient.
        world_size: P.
        link_bytes_per_s: speed of a rank's link; infinite: communication is free.
    """
    waiting = np.cumsum(nbytes[::-1])[::-1]
    times_sent = 2 * (world_size - 1) / world_size
    per_byte = times_sent / link_bytes_per_s if times_sent else 0.0
    last = float(np.max(compute.ready_s + per_byte * waiting))
    return max(compute.backward_end_s, last) + compute.update_s


@dataclass(frozen=True, eq=False)
class _Passage:
    """When buckets pass the channel, and when the computation beside it ends."""

    ready_s: FloatArray
    start_s: FloatArray
    finish_s: FloatArray
    compute_end_s: float

    @property
    def end_s(self) -> float:
        """When both have ended."""
        return max(self.compute_end_s, float(self.finish_s[-1]))


def _pass(compute: Compute, stops: IntArray, times: BucketTimes) -> _Passage:
    """Pass buckets through one first-in, first-out channel."""
    compressed = np.cumsum(times.compress_s)
    alone = compute.ready_s[stops - 1] + compressed
    end_s = compute.backward_end_s + float(compressed[-1])
    start_s, finish_s = [], []
    free_s, lost_s = 0.0, 0.0
    done_s, clock_s = [0.0], [0.0]  # of the computation, and when that is
    rates_beside = compute.rates_beside(float(compressed[-1]))
    for alone_s, handoff_s, startup_s, transfer_s, codec_s in zip(
        alone.tolist(),
        compute.handoffs_s[stops - 1].tolist(),
        times.startup_s.tolist(),
        times.transfer_s.tolist(),
        times.codec_s.tolist(),
        strict=True,
    ):
        free_s = max(free_s, alone_s + lost_s + handoff_s)
        start_s.append(free_s)
        for seconds, rates in phases(rates_beside, startup_s, transfer_s, codec_s):
            left_s = max(0.0, end_s + lost_s - free_s)
            takes_s, loses_s = beside(seconds, left_s, rates, min)
            if loses_s:
                both_s = loses_s / (1 - rates.compute)
                clock_s += [free_s, free_s + both_s]
                done_s += [free_s - lost_s, free_s + both_s - lost_s - loses_s]
            free_s += takes_s
            lost_s += loses_s
        finish_s.append(free_s)
    clock_s.append(end_s + lost_s)
    done_s.append(end_s)
    ready_s = np.interp(alone, done_s, clock_s)
    return _Passage(
        np.minimum(ready_s, start_s),  # Interpolation may round it to later.
        np.array(start_s),
        np.array(finish_s),
        compute_end_s=end_s + lost_s,
    )
