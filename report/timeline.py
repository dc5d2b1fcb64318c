"""What the pictures show: one iteration as spans on two rows.

Whoever has a schedule turns it into a :class:`Timeline`; every renderer draws that
value and knows nothing else. The rows are the two resources of the schedule model: the
compute stream, and the one communication channel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Lane: TypeAlias = Literal[
    "local steps",
    "forward",
    "backward",
    "compression",
    "update",
    "communication",
    "decompression",
]

ROWS: dict[str, tuple[Lane, ...]] = {
    "computation": ("local steps", "forward", "backward", "compression", "update"),
    "communication": ("communication", "decompression"),
}
"""The rows of a picture, from the top, and the lanes that are drawn on each."""

Interval: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Span:
    """Something that takes time.

    Attributes:
        name: what is done, such as ``bucket 3``.
        lane: which kind of work it is.
        start_s: from the start of the iteration.
        end_s: on the same clock, not before ``start_s``.
        bucket: the bucket that it belongs to, if any.
        detail: more to say where there is room, such as ``topk, 1.2 MB``.
    """

    name: str
    lane: Lane
    start_s: float
    end_s: float
    bucket: int | None = None
    detail: str = ""

    @property
    def duration_s(self) -> float:
        """How long it takes."""
        return self.end_s - self.start_s

    @property
    def interval(self) -> Interval:
        """From when to when."""
        return (self.start_s, self.end_s)


@dataclass(frozen=True)
class Timeline:
    """One iteration under one plan, or a round of local steps.

    Attributes:
        title: the plan's name, such as its solver.
        spans: in any order.
        iteration_s: how long the iteration, or the round, takes.
        exposed_s: the part of it that free communication would save.
        steps: of a round.
    """

    title: str
    spans: tuple[Span, ...]
    iteration_s: float
    exposed_s: float
    steps: int = 1

    @property
    def of(self) -> str:
        """What it is of."""
        return "an iteration" if self.steps == 1 else f"a round of {self.steps} steps"

    def row(self, name: str) -> tuple[Span, ...]:
        """Return the spans of the row ``name`` by start."""
        lanes = ROWS[name]
        on_row = (span for span in self.spans if span.lane in lanes)
        return tuple(sorted(on_row, key=lambda span: span.interval))

    @property
    def exposed_share(self) -> float:
        """``exposed_s`` as a share of the iteration."""
        return self.exposed_s / self.iteration_s if self.iteration_s else 0.0

    @property
    def exposed(self) -> tuple[Interval, ...]:
        """Where there is communication and no computation, by start."""
        busy = _merged(span.interval for span in self.row("computation"))
        sending = _merged(span.interval for span in self.row("communication"))
        return tuple(gap for interval in sending for gap in _without(interval, busy))


def lanes_in(timelines: Iterable[Timeline]) -> list[Lane]:
    """Return the lanes that have a span in any of ``timelines``, in the rows' order."""
    used = {span.lane for timeline in timelines for span in timeline.spans}
    return [lane for lanes in ROWS.values() for lane in lanes if lane in used]


def horizon_s(timelines: Iterable[Timeline]) -> float:
    """Return the length of a time axis that all of ``timelines`` fit on."""
    ends = [t.iteration_s for t in timelines]
    ends += [s.end_s for t in timelines for s in t.spans]
    return max(ends)


def common(interval: Interval, others: Iterable[Interval]) -> list[Interval]:
    """Return the parts of ``interval`` that lie within ``others``."""
    cut = ((max(interval[0], a), min(interval[1], b)) for a, b in others)
    return [(a, b) for a, b in cut if a < b]


def total_s(intervals: Iterable[Interval]) -> float:
    """Return how long ``intervals`` are together."""
    return sum((end - start for start, end in intervals), start=0.0)


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _without(interval: Interval, busy: list[Interval]) -> list[Interval]:
    start, end = interval
    left = []
    for busy_start, busy_end in busy:
        if busy_start > start:
            left.append((start, min(end, busy_start)))
        start = max(start, busy_end)
        if start >= end:
            break
    left.append((start, end))
    return [(a, b) for a, b in left if a < b]
