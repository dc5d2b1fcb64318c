"""The timing of a plan or a run as a timeline.

A timing knows when buckets are ready, start and finish. So backward and compression are
one span up to each bucket's ready time, and whatever keeps the channel busy for a
bucket, encoding and decoding included, is one span of communication.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from comm_plan import units
from comm_plan.plans import Timing
from comm_plan.report.timeline import Span, Timeline


def timed(
    title: str,
    timing: Timing,
    iteration_s: float,
    details: Sequence[str] = (),
    exposed_s: float | None = None,
    steps: int = 1,
) -> Timeline:
    """Return one iteration, or a round of local steps, as spans.

    Args:
        title: the picture's title.
        timing: when what happens.
        iteration_s: how long the iteration takes; what is left at its end is the
            update.
        details: what to say of each bucket, in launch order.
        exposed_s: what free communication would save; None: it is not known, and how
            long the last bucket takes after all computation stands for it.
        steps: of the round that ``timing`` is of; the two times are each one's.
    """
    whole_s = steps * iteration_s
    spans = (*_compute(timing, steps), *_communication(timing, details))
    end_s = max(span.end_s for span in spans)
    if whole_s > end_s:
        spans += (Span("update", "update", end_s, whole_s),)
    all_exposed_s = after_compute_s(timing) if exposed_s is None else steps * exposed_s
    return Timeline(title, spans, whole_s, all_exposed_s, steps)


def after_compute_s(timing: Timing) -> float:
    """Return how long the last bucket takes after all computation but the update."""
    finish_s = max((bucket.finish_s for bucket in timing.buckets), default=0.0)
    return max(0.0, finish_s - timing.compute_end_s)


def _compute(timing: Timing, steps: int) -> Iterator[Span]:
    now = timing.backward_start_s
    if steps == 1:
        yield Span("forward", "forward", 0.0, now)
    else:
        yield Span(f"{steps} local steps", "local steps", 0.0, now)
    ready = [(bucket.ready_s, number) for number, bucket in enumerate(timing.buckets)]
    for ready_s, number in sorted(ready):
        end_s = min(ready_s, timing.compute_end_s)
        if end_s > now:
            yield Span(f"backward of bucket {number}", "backward", now, end_s, number)
            now = end_s
    if timing.compute_end_s > now:
        yield Span("backward", "backward", now, timing.compute_end_s)


def _communication(timing: Timing, details: Sequence[str]) -> Iterator[Span]:
    for number, bucket in enumerate(timing.buckets):
        waits = f"ready at {units.seconds(bucket.ready_s)}"
        if bucket.start_s > bucket.ready_s:
            waits += f", waits {units.seconds(bucket.start_s - bucket.ready_s)}"
        yield Span(
            f"bucket {number}",
            "communication",
            bucket.start_s,
            bucket.finish_s,
            number,
            "\n".join([waits, *details[number : number + 1]]),
        )
