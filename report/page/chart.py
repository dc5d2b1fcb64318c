"""Charts of series over two axes, as inline SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from comm_plan.report.page.axes import Axis
from comm_plan.report.page.blocks import Figure, Key
from comm_plan.report.page.svg import element

WIDTH, HEIGHT = 480.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 26.0, 28.0, 44.0
STYLES = 6
"""How many colours, dashes and shapes of points there are; further series combine them
anew, with dashes of their own."""

_SIZE = 4.0
_SHAPES = (
    "M{r} 0A{r} {r} 0 1 1 -{r} 0A{r} {r} 0 1 1 {r} 0Z",
    "M-{r} -{r}H{r}V{r}H-{r}Z",
    "M0 -{r}L{r} {r}H-{r}Z",
    "M0 -{r}L{r} 0L0 {r}L-{r} 0Z",
    "M0 {r}L{r} -{r}H-{r}Z",
    "M-{r} -{r}L{r} {r}M{r} -{r}L-{r} {r}",
)


@dataclass(frozen=True)
class Point:
    """A point, what to say of it, and the ends of its bar if it has one."""

    x: float
    y: float
    tip: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """Points that belong together.

    Attributes:
        name: for the legend, where equal ones are one.
        points: from left to right.
        style: which look, 0 or more.
        line: whether they are joined.
        shapes: whether each is drawn.
        hollow: whether shapes are drawn as outlines.
        column: if above 0, each is a column of this width along x.
    """

    name: str
    points: tuple[Point, ...]
    style: int = 0
    line: bool = True
    shapes: bool = True
    hollow: bool = False
    column: float = 0.0


@dataclass(frozen=True)
class Rule:
    """A line across the chart at ``x``, with ``text`` beside it, or at ``y``."""

    text: str = ""
    x: float | None = None
    y: float | None = None


def chart(
    title: str,
    x: Axis,
    y: Axis,
    series: Sequence[Series],
    *,
    rules: Sequence[Rule] = (),
    note: str = "",
) -> Figure:
    """Return the figure of ``series``; a point that an axis cannot show is left out."""
    parts = [*_grid(x, y)]
    for one in series:
        parts += _series(x, y, one)
    parts += _rules(x, y, rules)
    names = ", ".join(dict.fromkeys(one.name for one in series))
    drawing = element(
        "svg",
        *parts,
        class_="chart",
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_label=f"{title}: {y.label} over {x.label} of {names}",
    )
    keys = {o.name: Key(o.name, _sample(o)) for o in series if not o.column}
    return Figure(title, drawing, tuple(keys.values()), note)


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.at(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.at(value) * (HEIGHT - TOP - BOTTOM)


def _grid(x: Axis, y: Axis) -> Iterator[Markup]:
    top, bottom, right = TOP, HEIGHT - BOTTOM, WIDTH - RIGHT
    for value, label in y.ticks:
        at = _y(y, value)
        yield element("line", class_="grid", x1=LEFT, x2=right, y1=at, y2=at)
        yield element("text", label, x=LEFT - 7, y=at + 4, text_anchor="end")
    for value, label in x.ticks:
        at = _x(x, value)
        yield element("line", class_="grid", x1=at, x2=at, y1=top, y2=bottom)
        yield element("text", label, x=at, y=bottom + 17, text_anchor="middle")
    yield element("text", y.label, class_="axis", x=4.0, y=14.0)
    yield element(
        "text", x.label, class_="axis", x=right, y=HEIGHT - 6, text_anchor="end"
    )


def _rules(x: Axis, y: Axis, rules: Sequence[Rule]) -> Iterator[Markup]:
    top, bottom, right = TOP, HEIGHT - BOTTOM, WIDTH - RIGHT
    for number, rule in enumerate(rules):
        if rule.x is not None:
            at = _x(x, rule.x)
            yield element("line", class_="rule", x1=at, x2=at, y1=top, y2=bottom)
            side = "end" if x.at(rule.x) > 0.6 else "start"
            beside = at - 5 if side == "end" else at + 5
            height = top + 12 + 15 * (number % 4)
            yield element("text", rule.text, x=beside, y=height, text_anchor=side)
        if rule.y is not None:
            at = _y(y, rule.y)
            yield element("line", class_="rule", x1=LEFT, x2=right, y1=at, y2=at)


def _series(x: Axis, y: Axis, series: Series) -> Iterator[Markup]:
    shown = [p for p in series.points if x.shows(p.x) and y.shows(p.y)]
    look = _look(series)
    places = [(_x(x, p.x), _y(y, p.y)) for p in shown]
    if series.line and len(shown) > 1:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        yield element("polyline", class_=f"line {look}", points=path)
    if series.column:
        yield from _columns(x, y, series)
        return
    for point, (left, top) in zip(shown, places, strict=True):
        if (
            point.low is not None
            and point.high is not None
            and y.shows(min(point.low, point.high))
        ):
            ends = {"y1": _y(y, point.low), "y2": _y(y, point.high)}
            yield element("line", class_=f"bar {look}", x1=left, x2=left, **ends)
        parts = [element("circle", class_="hit", r=8)]
        if series.shapes:
            parts.append(_shape(series))
        place = f"translate({left:.1f} {top:.1f})"
        yield element("g", *parts, transform=place, data_tip=point.tip)


def _columns(x: Axis, y: Axis, series: Series) -> Iterator[Markup]:
    for point in series.points:
        left = _x(x, point.x - series.column / 2)
        yield element(
            "rect",
            class_=f"column {_look(series)}",
            x=left,
            y=_y(y, point.y),
            width=_x(x, point.x + series.column / 2) - left,
            height=HEIGHT - BOTTOM - _y(y, point.y),
            data_tip=point.tip,
        )


def _look(series: Series) -> str:
    again = " again" if series.style >= STYLES else ""
    return f"s{series.style % STYLES}{again}"


def _shape(series: Series) -> Markup:
    path = _SHAPES[(series.style + series.style // STYLES) % STYLES]
    path = path.format(r=_SIZE)
    hollow = " hollow" if series.hollow else ""
    return element("path", class_=f"shape {_look(series)}{hollow}", d=path)


def _sample(series: Series) -> Markup:
    parts = []
    if series.line:
        ends = {"x1": 1, "x2": 27, "y1": 8, "y2": 8}
        parts.append(element("line", class_=f"line {_look(series)}", **ends))
    if series.shapes:
        parts.append(element("g", _shape(series), transform="translate(14 8)"))
    return element("svg", *parts, viewBox="0 0 28 16", aria_hidden="true")
