"""Timelines in a terminal: two coloured bars each, on one common time axis.

Every cell of a bar shows what takes the most of the cell's time. Without colours (a
file, a log, ``NO_COLOR``) letters take the place of colours, in plain ASCII.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from comm_plan import units
from comm_plan.report.palette import EXPOSED, color
from comm_plan.report.timeline import (
    Interval,
    Lane,
    Span,
    Timeline,
    common,
    horizon_s,
    lanes_in,
    total_s,
)

MIN_BAR = 10
LETTERS: dict[Lane, str] = {
    "local steps": "l",
    "forward": "f",
    "backward": "b",
    "compression": "c",
    "update": "u",
    "communication": "m",
    "decompression": "d",
}
EXPOSED_LETTER = "x"
_BLOCK, _HATCHED = "█", "▒"
_LABELS = {"computation": "compute ", "communication": "network "}


@dataclass(frozen=True)
class TerminalTimelines:
    """A rich renderable; as wide as the console allows.

    Attributes:
        timelines: drawn one below the other, to one scale.
    """

    timelines: Sequence[Timeline]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """Yield the lines, none wider than the console."""
        pen = _Pen(colors=console.color_system is not None and not console.no_color)
        margin = len(_LABELS["computation"])
        width = max(MIN_BAR, options.max_width - margin)
        cell_s = (horizon_s(self.timelines) or 1.0) / width
        for timeline in self.timelines:
            yield _heading(timeline)
            for row, label in _LABELS.items():
                bar = _bar(timeline, row, width, cell_s, pen)
                yield Text.assemble((label, "dim"), bar, no_wrap=True)
        yield Text(" " * margin + _axis(width, cell_s), style="dim", no_wrap=True)
        yield _legend(self.timelines, pen)


@dataclass(frozen=True)
class _Pen:
    """Draws with colours or, where there are none, with letters."""

    colors: bool

    def cell(self, span: Span, exposed: bool) -> Text:
        if not self.colors:
            letter = EXPOSED_LETTER if exposed else LETTERS[span.lane]
            odd = span.bucket is not None and span.bucket % 2 == 1
            return Text(letter.upper() if odd else letter)
        if exposed:
            return Text(_HATCHED, style=f"{EXPOSED} on {color(span)}")
        return Text(_BLOCK, style=color(span))

    def key(self, name: str, lane: Lane, exposed: bool = False) -> Text:
        sample = self.cell(Span(name, lane, 0.0, 0.0), exposed)
        return Text.assemble(sample, f" {name}")


def _heading(timeline: Timeline) -> Text:
    return Text.assemble(
        (timeline.title, "bold"),
        f"  {units.seconds(timeline.iteration_s)} {timeline.of}, ",
        f"{units.seconds(timeline.exposed_s)} exposed "
        f"({units.percent(timeline.exposed_share)})",
    )


def _bar(timeline: Timeline, row: str, width: int, cell_s: float, pen: _Pen) -> Text:
    exposed = timeline.exposed if row == "communication" else ()
    spans = timeline.row(row)
    bar = Text()
    for column in range(width):
        interval = (column * cell_s, (column + 1) * cell_s)
        span = _longest_in(spans, interval)
        if span is None:
            bar.append(" ")
            continue
        bar.append(pen.cell(span, _mostly(interval, span, exposed)))
    return bar


def _longest_in(spans: Sequence[Span], cell: Interval) -> Span | None:
    """Return the span that takes the most of ``cell``, None if most of it is idle."""
    lengths = [total_s(common(cell, [span.interval])) for span in spans]
    longest = max(lengths, default=0.0)
    idle_s = cell[1] - cell[0] - sum(lengths)
    return spans[lengths.index(longest)] if longest > max(0.0, idle_s) else None


def _mostly(cell: Interval, span: Span, exposed: Sequence[Interval]) -> bool:
    """Return whether most of the span's part in ``cell`` is exposed."""
    within = common(cell, [span.interval])
    shared = [part for piece in within for part in common(piece, exposed)]
    return total_s(shared) > total_s(within) / 2


def _axis(width: int, cell_s: float) -> str:
    """Return round times, each with its last character where that time is."""
    axis = [" "] * width
    for time_s, label in units.ticks(width * cell_s, at_most=max(2, width // 15)):
        end = min(width, max(len(label), round(time_s / cell_s)))
        axis[end - len(label) : end] = label
    return "".join(axis)


def _legend(timelines: Sequence[Timeline], pen: _Pen) -> Text:
    keys = [pen.key(lane, lane) for lane in lanes_in(timelines)]
    if any(timeline.exposed for timeline in timelines):
        keys.append(pen.key("exposed", "communication", exposed=True))
    return Text("   ").join(keys)
