"""Pictures of benchmarks' results, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from comm_plan.report.palette import COLORS, INK, QUIET_INK

WIDTH_INCHES = 8.0
BAR_INCHES = 0.26
HEAD_INCHES = 0.9
DPI = 130

PLACES = ((4, 4), (4, -9), (-4, 4), (-4, -9), (4, 12), (4, -17), (-4, 12), (-4, -17))
"""Where a name may be, in points from what it names."""


def bars(
    groups: Mapping[str, Mapping[str, float | None]],
    title: str,
    unit: str,
    highlighted: str,
) -> bytes:
    """Return horizontal bars, a panel for each group, all from 0.

    Args:
        groups: of each panel the bars' values by name, from top to bottom; None: there
            is no value, and the panel says so.
        title: of the picture.
        unit: what values are.
        highlighted: bars whose names begin so are of another colour.
    """
    counts = [len(group) for group in groups.values()]
    height = HEAD_INCHES * len(counts) + BAR_INCHES * sum(counts)
    figure = Figure(
        figsize=(WIDTH_INCHES, height), dpi=DPI, facecolor="white", layout="constrained"
    )
    panels = figure.subplots(len(groups), squeeze=False, height_ratios=counts)[:, 0]
    for axes, (name, group) in zip(panels, groups.items(), strict=True):
        for place, (label, value) in enumerate(group.items()):
            color = COLORS["backward"]
            if label.startswith(highlighted):
                color = COLORS["communication"]
            axes.barh(-place, value or 0.0, color=color, height=0.7)
            text = " never" if value is None else f" {value:.3g}"
            axes.text(value or 0.0, -place, text, va="center", fontsize=8, color=INK)
        axes.set_yticks([-place for place in range(len(group))], list(group))
        axes.tick_params(axis="y", length=0, labelsize=8, colors=INK)
        axes.tick_params(axis="x", labelsize=8, colors=QUIET_INK)
        axes.set_title(name, fontsize=9, loc="left", color=INK)
        axes.margins(x=0.1)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[-1].set_xlabel(unit, fontsize=8, color=QUIET_INK)
    figure.suptitle(title, fontsize=11, color=INK)
    return _png(figure)


@dataclass(frozen=True)
class Point:
    """A method in a picture of what it costs and what it brings.

    Attributes:
        name: written beside it.
        group: points of a group have one colour.
        x: where it is.
        y: likewise, the mean.
        lowest: of what ``y`` is the mean of.
        highest: likewise.
    """

    name: str
    group: str
    x: float
    y: float
    lowest: float
    highest: float


def best(points: Sequence[Point], rising: bool) -> list[Point]:
    """Return the Pareto front: points with no other as far right that is better.

    Args:
        points: the further right, the better.
        rising: whether also the higher, the better; else the lower.
    """
    sign = 1 if rising else -1
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (-p.x, -sign * p.y)):
        if not front or sign * point.y > sign * front[-1].y:
            front.append(point)
    return front


def front(
    points: Sequence[Point], title: str, x_label: str, y_label: str, rising: bool
) -> bytes:
    """Return the points, their ranges, and a line through the best of them.

    Args:
        points: the further right, the better; x is above 0 and on a logarithmic axis.
        title: of the picture.
        x_label: what x is.
        y_label: what y is.
        rising: whether higher points are better; else lower ones.
    """
    figure = Figure(
        figsize=(WIDTH_INCHES, 5), dpi=DPI, facecolor="white", layout="constrained"
    )
    axes = figure.subplots()
    groups = dict.fromkeys(point.group for point in points)
    for color, group in zip(COLORS.values(), groups, strict=False):
        members = [point for point in points if point.group == group]
        ranges = [(p.y - p.lowest, p.highest - p.y) for p in members]
        axes.errorbar(
            [p.x for p in members], [p.y for p in members],
            yerr=list(zip(*ranges, strict=True)), fmt="o", color=color, label=group,
            markersize=5, elinewidth=0.8, capsize=2,
        )  # fmt: skip
    line = best(points, rising)
    axes.plot([p.x for p in line], [p.y for p in line], color=QUIET_INK, linewidth=0.8)
    axes.set_xscale("log")
    _dress(axes, x_label, y_label)
    figure.suptitle(title, fontsize=11, color=INK)
    figure.draw_without_rendering()  # now everything has its place
    _name(axes, points)
    return _png(figure)


def lines(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    x_label: str,
    y_label: str,
) -> bytes:
    """Return curves through points, the vertical axis logarithmic.

    Args:
        curves: by name, their points from left to right; y is above 0.
        title: of the picture.
        x_label: what x is.
        y_label: what y is.
    """
    figure = Figure(
        figsize=(WIDTH_INCHES, 4), dpi=DPI, facecolor="white", layout="constrained"
    )
    axes = figure.subplots()
    for color, (name, points) in zip(COLORS.values(), curves.items(), strict=False):
        axes.plot(*zip(*points, strict=True), color=color, label=name, linewidth=1.2)
    axes.set_yscale("log")
    _dress(axes, x_label, y_label)
    figure.suptitle(title, fontsize=11, color=INK)
    return _png(figure)


def _name(axes: Axes, points: Sequence[Point]) -> None:
    """Write each point's name beside it, at the first place without another name."""
    written: list[Bbox] = []
    for point in points:
        for x, y in PLACES:
            text = axes.annotate(
                point.name, (point.x, point.y), xytext=(x, y), fontsize=7, color=INK,
                textcoords="offset points", ha="left" if x > 0 else "right",
            )  # fmt: skip
            box = text.get_window_extent()
            if not any(map(box.overlaps, written)) or (x, y) == PLACES[-1]:
                written.append(box)
                break
            text.remove()


def _dress(axes: Axes, x_label: str, y_label: str) -> None:
    """Label the axes, and leave away what says nothing."""
    axes.set_xlabel(x_label, fontsize=8, color=QUIET_INK)
    axes.set_ylabel(y_label, fontsize=8, color=QUIET_INK)
    axes.tick_params(labelsize=8, colors=QUIET_INK)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _png(figure: Figure) -> bytes:
    stream = BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": "comm-plan"})
    return stream.getvalue()
