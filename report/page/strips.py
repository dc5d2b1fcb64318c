"""Named rows of marks on one axis; as wide as the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup

from comm_plan.report.page.axes import Axis
from comm_plan.report.page.blocks import Key
from comm_plan.report.page.svg import element, percent

_HEIGHT = 26
_RADIUS = 6
_INSET = 0.015
"""Left free at both ends, so that no mark is cut."""


@dataclass(frozen=True)
class Mark:
    """A mark at a value: hollow (a prediction) or filled, and what to say of it."""

    at: float
    tip: str
    hollow: bool = False


@dataclass(frozen=True)
class Row:
    """Marks on one line.

    Attributes:
        name: in front of the line.
        marks: on it.
        ends: of a thin bar under them, if there is one.
        note: behind the name.
        strong: whether the row stands out.
    """

    name: str
    marks: tuple[Mark, ...]
    ends: tuple[float, float] | None = None
    note: str = ""
    strong: bool = False

    def said(self) -> str:
        """Return the row in words."""
        return "; ".join(mark.tip.replace("\n", ", ") for mark in self.marks)


@dataclass(frozen=True)
class Strips:
    """Rows as drawn, each on the same axis."""

    template: ClassVar[str] = "strips.html"

    title: str
    rows: tuple[tuple[Row, Markup], ...]
    axis: Markup
    keys: tuple[Key, ...]


def strips(title: str, axis: Axis, rows: Sequence[Row], keys: Sequence[Key]) -> Strips:
    """Return ``rows`` on ``axis``."""
    drawn = tuple((row, _draw(axis, row)) for row in rows)
    labels = [_label(axis, value, label) for value, label in axis.ticks]
    scale = element("svg", *labels, class_="axis", height=16, aria_hidden="true")
    return Strips(title, drawn, scale, tuple(keys))


def sample(hollow: bool) -> Markup:
    """Return a mark for a legend."""
    mark = _circle("14", 8, hollow)
    return element("svg", mark, viewBox="0 0 28 16", aria_hidden="true")


def _label(axis: Axis, value: float, text: str) -> Markup:
    at = axis.at(value)
    anchor = "start" if at < 0.03 else "end" if at > 0.97 else "middle"
    return element("text", text, x=_x(axis, value), y=12, text_anchor=anchor)


def _x(axis: Axis, value: float) -> str:
    return percent(_INSET + (1 - 2 * _INSET) * axis.at(value))


def _draw(axis: Axis, row: Row) -> Markup:
    middle = _HEIGHT // 2
    parts = []
    for value, _ in axis.ticks:
        at = _x(axis, value)
        parts.append(element("line", class_="grid", x1=at, x2=at, y1=0, y2=_HEIGHT))
    if row.ends is not None:
        low, high = (_x(axis, value) for value in row.ends)
        ends = {"x1": low, "x2": high, "y1": middle, "y2": middle}
        parts.append(element("line", class_="bar s0", **ends))
    for mark in row.marks:
        parts.append(_circle(_x(axis, mark.at), middle, mark.hollow, mark.tip))
    label = f"{row.name}: {row.said()}"
    return element("svg", *parts, height=_HEIGHT, role="img", aria_label=label)


def _circle(x: str, y: int, hollow: bool, tip: str | None = None) -> Markup:
    look = "shape s1 hollow" if hollow else "shape s0"
    return element("circle", class_=look, cx=x, cy=y, r=_RADIUS, data_tip=tip)
