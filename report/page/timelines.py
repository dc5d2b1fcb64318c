"""Timelines to one scale, zoomed together: predicted above measured.

Times are in percent of the width, so that a drawing is as wide as the page, and the
script moves what is drawn and draws the axis anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup

from comm_plan import units
from comm_plan.report.page.blocks import Block, Key, Section, section
from comm_plan.report.page.given import Given, ShownPlan, ShownRun
from comm_plan.report.page.sizes import bucket_text, plan_sizes, run_sizes
from comm_plan.report.page.svg import element, percent
from comm_plan.report.palette import color
from comm_plan.report.timeline import ROWS, Span, Timeline, horizon_s, lanes_in
from comm_plan.report.timing import timed

BAR, GAP = 22, 5
MAX_TICKS = 8
NUMBERED = 0.03
"""Shorter spans, as a share of the width, carry no number."""

EDGED = 0.003
"""Narrower spans, as shares of the whole, have no edges, which would hide them."""


@dataclass(frozen=True)
class Drawing:
    """One timeline: its title, what to say of it, and its spans."""

    title: str
    said: str
    spans: Markup


@dataclass(frozen=True)
class Timelines:
    """Drawings on one axis that is ``end_s`` long."""

    template: ClassVar[str] = "timelines.html"

    end_s: float
    drawings: tuple[Drawing, ...]
    axis: Markup
    keys: tuple[Key, ...]


def timelines(given: Given) -> Section | None:
    """Return the timelines of plans and runs, or the solvers' where there are none."""
    return section("timelines", "One iteration", _blocks(drawn(given)))


def drawn(given: Given) -> tuple[Timeline, ...]:
    """Return each plan as predicted and then as measured; else what was simulated."""
    return tuple(_timings(given)) or given.simulated


def _timings(given: Given) -> Iterator[Timeline]:
    for shown in given.plans:
        predicted = shown.plan.predicted
        if predicted is not None and predicted.timing is not None:
            details = _details(given, shown)
            title = f"{shown.name}: predicted"
            yield timed(
                title,
                predicted.timing,
                predicted.iteration_s,
                details,
                predicted.exposed_s,
                shown.plan.round_steps,
            )
        for run in given.runs:
            if run.plan is shown:
                yield from _measured(run, _details(given, shown))
    for run in given.runs:
        if run.plan is None:
            yield from _measured(run, _sent(run))


def _measured(run: ShownRun, details: Sequence[str]) -> Iterator[Timeline]:
    timing = run.record.timing
    if timing is not None and run.record.iteration.count:
        title = f"{run.name}: measured"
        median_s, steps = run.record.iteration.median_s, run.record.round_steps
        yield timed(title, timing, median_s, details, steps=steps)


def _details(given: Given, shown: ShownPlan) -> list[str]:
    sizes = plan_sizes(shown.plan, given.profile)
    buckets = shown.plan.buckets
    return [
        bucket_text(bucket, sizes[number] if sizes else None)
        for number, bucket in enumerate(buckets)
    ]


def _sent(run: ShownRun) -> list[str]:
    sizes = (size.message for size in run_sizes(run.record))
    return [f"{units.nbytes(message)} sent" for message in sizes]


def _blocks(shown: Sequence[Timeline]) -> Iterator[Block]:
    end_s = horizon_s(shown) if shown else 0.0
    if end_s > 0:
        drawings = tuple(_drawing(timeline, end_s) for timeline in shown)
        yield Timelines(end_s, drawings, _axis(end_s), tuple(_keys(shown)))


def _drawing(timeline: Timeline, end_s: float) -> Drawing:
    said = f"{units.seconds(timeline.iteration_s)} {timeline.of}"
    if timeline.iteration_s > 0:
        share = units.percent(timeline.exposed_share)
        said += f", {units.seconds(timeline.exposed_s)} exposed ({share})"
    parts = [element("g", *_grid(end_s), class_="grid")]
    for place, row in enumerate(ROWS):
        for span in timeline.row(row):
            parts += _span(span, place * (BAR + GAP), end_s)
    for start_s, stop_s in timeline.exposed:
        parts.append(_exposed(start_s / end_s, (stop_s - start_s) / end_s))
    spans = element(
        "svg",
        *parts,
        class_="spans",
        height=len(ROWS) * (BAR + GAP) - GAP,
        role="img",
        aria_label=f"{timeline.title}: {said}",
    )
    return Drawing(timeline.title, said, spans)


def _span(span: Span, y: int, end_s: float) -> Iterator[Markup]:
    start, width = span.start_s / end_s, span.duration_s / end_s
    yield element(
        "rect",
        class_="span" if width > EDGED else "span thin",
        x=percent(start),
        width=percent(width),
        y=y,
        height=BAR,
        fill=color(span),
        data_tip="\n".join(_tip(span)),
    )
    if span.lane == "communication" and span.bucket is not None:
        yield element(
            "text",
            str(span.bucket),
            class_="number" if width > NUMBERED else "number small",
            x=percent(start + width / 2),
            y=y + BAR / 2 + 4,
            data_width=percent(width),
        )


def _exposed(start: float, width: float) -> Markup:
    return element(
        "rect",
        class_="exposed",
        x=percent(start),
        width=percent(width),
        y=list(ROWS).index("communication") * (BAR + GAP),
        height=BAR,
    )


def _tip(span: Span) -> Iterator[str]:
    yield span.name if span.name == span.lane else f"{span.name} ({span.lane})"
    start, end = units.seconds(span.start_s), units.seconds(span.end_s)
    yield f"{units.seconds(span.duration_s)}, from {start} to {end}"
    if span.detail:
        yield span.detail


def _ticks(end_s: float) -> list[tuple[float, str]]:
    ticks = units.ticks(end_s, at_most=MAX_TICKS)
    return [(time_s / end_s, label) for time_s, label in ticks]


def _grid(end_s: float) -> Iterator[Markup]:
    for share, _ in _ticks(end_s):
        at = percent(share)
        yield element("line", x1=at, x2=at, y1=0, y2="100%")


def _axis(end_s: float) -> Markup:
    labels = []
    for share, label in _ticks(end_s):
        anchor = "start" if share == 0 else "end" if share > 0.96 else "middle"
        labels.append(
            element("text", label, x=percent(share), y=12, text_anchor=anchor)
        )
    return element("svg", *labels, class_="axis", height=16, aria_hidden="true")


def _keys(shown: Sequence[Timeline]) -> Iterator[Key]:
    for lane in lanes_in(shown):
        yield Key(lane, _sample(color(Span(lane, lane, 0.0, 0.0))))
    if any(timeline.exposed for timeline in shown):
        hatched = element("rect", class_="exposed", width=28, height=16)
        sent = color(Span("", "communication", 0.0, 0.0))
        yield Key("exposed communication", _sample(sent, hatched))


def _sample(fill: str, *over: Markup) -> Markup:
    rect = element("rect", width=28, height=16, fill=fill)
    return element("svg", rect, *over, viewBox="0 0 28 16", aria_hidden="true")
