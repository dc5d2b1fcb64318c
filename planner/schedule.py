"""The timeline of one iteration under a plan: the one simulator that all share.

Gradients become ready in a fixed order on the compute stream. A bucket is a contiguous
run of them. Compressing a bucket occupies the compute stream and so delays the rest of
backward; buckets then pass one channel, first in, first out. The channel is the network
and the thread that serves it, which encodes what it sends and decodes what it receives
before it takes the next bucket::

    ready_b  = backward up to the bucket's last tensor + compression up to here
    start_b  = max(finish of the bucket before, ready_b + handoff)
    finish_b = start_b + communicate_b + codec_b
    iteration = max(end of the compute stream, last finish) + update

For dense buckets all but communication is free unless a profile says otherwise. This
is Eq. 6 to 8 of the MG-WFBP paper, with Eq. 20 for merged layers, for any cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from comm_plan.planner.curve import FloatArray, IntArray


@dataclass(frozen=True)
class Compute:
    """One iteration's computation without communication.

    Attributes:
        ready_s: [L] when each gradient is ready, from the start of the iteration,
            forward included.
        backward_end_s: when backward ends, on the same clock.
        update_s: duration of the optimizer's step.
        handoff_s: from when a bucket is ready to when an idle channel takes it.
    """

    ready_s: FloatArray
    backward_end_s: float
    update_s: float
    handoff_s: float = 0.0


@dataclass(frozen=True, eq=False)
class BucketTimes:
    """Seconds that each bucket takes, [B] each.

    ``compress_s`` of the compute stream; ``communicate_s`` of the network; ``codec_s``
    of the communication thread: encoding and decoding.
    """

    compress_s: FloatArray
    communicate_s: FloatArray
    codec_s: FloatArray


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
        iteration_s: the whole iteration.
        exposed_s: iteration_s minus that of the same plan with free communication.
    """

    stops: IntArray
    times: BucketTimes
    ready_s: FloatArray
    start_s: FloatArray
    finish_s: FloatArray
    compute_end_s: float
    iteration_s: float
    exposed_s: float


def simulate(compute: Compute, stops: IntArray, times: BucketTimes) -> Schedule:
    """Return the timeline of the buckets that end at ``stops`` [B]."""
    compressed = np.cumsum(times.compress_s)
    ready = compute.ready_s[stops - 1] + compressed
    sendable = ready + compute.handoff_s
    start, finish = _channel(sendable, times.communicate_s + times.codec_s)
    _, free = _channel(sendable, times.codec_s)
    compute_end = compute.backward_end_s + float(compressed[-1])
    end = max(compute_end, float(finish[-1]))
    return Schedule(
        stops=stops,
        times=times,
        ready_s=ready,
        start_s=start,
        finish_s=finish,
        compute_end_s=compute_end,
        iteration_s=end + compute.update_s,
        exposed_s=end - max(compute_end, float(free[-1])),
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
    per_byte = 2 * (world_size - 1) / world_size / link_bytes_per_s
    last = float(np.max(compute.ready_s + per_byte * waiting))
    return max(compute.backward_end_s, last) + compute.update_s


def _channel(ready: FloatArray, busy: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Pass buckets through one first-in, first-out channel."""
    starts, finishes, free = [], [], 0.0
    for at, seconds in zip(ready.tolist(), busy.tolist(), strict=True):
        start = max(free, at)
        free = start + seconds
        starts.append(start)
        finishes.append(free)
    return np.array(starts), np.array(finishes)
