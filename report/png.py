"""Timelines as a PNG: one plan below the other on a common time axis.

Needs matplotlib (``pip install "comm-plan[report]"``), which is loaded on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from textwrap import fill
from typing import Any

from comm_plan import units
from comm_plan.errors import InputError
from comm_plan.report.palette import COLORS, EXPOSED, INK, QUIET_INK, color
from comm_plan.report.timeline import Span, Timeline, horizon_s, lanes_in

WIDTH_INCHES = 11.0
PLAN_INCHES = 0.85
MARGIN_INCHES = 1.2
DPI = 160

_ROW_AT = {"computation": 0.22, "communication": -0.22}
_ROW_HEIGHT = 0.38
_LABEL_CHARACTERS = 18
_EXPOSED_STYLE: dict[str, Any] = {
    "facecolor": COLORS["communication"],
    "edgecolor": EXPOSED,
    "hatch": "////",
    "linewidth": 0,
}
_NUMBER_SHARE = 0.028  # of the axis: narrower buckets carry no number


def png(timelines: Sequence[Timeline], title: str) -> bytes:
    """Return the picture of ``timelines``, the first on top, as a PNG file.

    Raises:
        InputError: matplotlib is not installed.
    """
    figure_class = _figure_class()
    height = MARGIN_INCHES + PLAN_INCHES * len(timelines)
    figure = figure_class(figsize=(WIDTH_INCHES, height), dpi=DPI, facecolor="white")
    axes = figure.subplots()
    end_ms = 1e3 * horizon_s(timelines)
    for place, timeline in enumerate(timelines):
        _draw(axes, timeline, -place, end_ms)
    _frame(axes, timelines, end_ms)
    _title_and_legend(figure, axes, timelines, title)
    figure.subplots_adjust(
        left=_left(timelines), right=0.87, top=1 - 0.66 / height, bottom=0.48 / height
    )
    stream = BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": "comm-plan"})
    return stream.getvalue()


def _label(timeline: Timeline) -> str:
    return fill(timeline.title, _LABEL_CHARACTERS)


def _left(timelines: Sequence[Timeline]) -> float:
    """Return the share of the width that the plans' names need."""
    lines = [line for t in timelines for line in _label(t).splitlines()]
    return (0.35 + 0.085 * max(map(len, lines), default=0)) / WIDTH_INCHES


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "a PNG needs matplotlib, which is not installed: "
            'pip install "comm-plan[report]"'
        ) from None
    return Figure


def _draw(axes: Any, timeline: Timeline, y: float, end_ms: float) -> None:
    for row, offset in _ROW_AT.items():
        for span in timeline.row(row):
            _draw_span(axes, span, y + offset, end_ms)
    for start_s, stop_s in timeline.exposed:
        axes.barh(
            y + _ROW_AT["communication"], 1e3 * (stop_s - start_s), left=1e3 * start_s,
            height=_ROW_HEIGHT, **{**_EXPOSED_STYLE, "facecolor": "none"}, zorder=3,
        )  # fmt: skip
    after_ms = 1e3 * timeline.iteration_s + 0.008 * end_ms
    axes.text(
        after_ms, y + 0.02, units.seconds(timeline.iteration_s),
        va="bottom", ha="left", fontsize=10, fontweight="bold", color=INK,
    )  # fmt: skip
    axes.text(
        after_ms, y - 0.02, f"{units.seconds(timeline.exposed_s)} exposed",
        va="top", ha="left", fontsize=8, color=QUIET_INK,
    )  # fmt: skip


def _draw_span(axes: Any, span: Span, y: float, end_ms: float) -> None:
    start_ms, width_ms = 1e3 * span.start_s, 1e3 * span.duration_s
    axes.barh(
        y, width_ms, left=start_ms, height=_ROW_HEIGHT,
        color=color(span), edgecolor="white", linewidth=0.4,
    )  # fmt: skip
    wide = width_ms > _NUMBER_SHARE * end_ms
    if span.lane == "communication" and span.bucket is not None and wide:
        axes.text(
            start_ms + width_ms / 2, y, str(span.bucket),
            ha="center", va="center", fontsize=7, color=INK, zorder=4,
            bbox={"boxstyle": "round,pad=0.15", "fc": color(span), "lw": 0},
        )  # fmt: skip


def _frame(axes: Any, timelines: Sequence[Timeline], end_ms: float) -> None:
    axes.set_xlim(0, end_ms)
    axes.set_ylim(0.5 - len(timelines), 0.5)
    axes.set_yticks(
        [-place for place in range(len(timelines))],
        [_label(timeline) for timeline in timelines],
        fontsize=10, color=INK, parse_math=False,
    )  # fmt: skip
    axes.set_xlabel("time from the start of the iteration (ms)", color=QUIET_INK)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", colors=QUIET_INK, labelsize=8)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#b0b0b0")


def _title_and_legend(
    figure: Any, axes: Any, timelines: Sequence[Timeline], title: str
) -> None:
    from matplotlib.patches import Patch

    keys = [Patch(facecolor=COLORS[lane], label=lane) for lane in lanes_in(timelines)]
    keys.append(Patch(label="exposed communication", **_EXPOSED_STYLE))
    height = figure.get_figheight()
    left = _left(timelines)
    figure.text(
        left, 1 - 0.27 / height, title,
        fontsize=13, fontweight="bold", color=INK, parse_math=False,
    )  # fmt: skip
    figure.legend(
        handles=keys, loc="upper left",
        bbox_to_anchor=(left - 0.006, 1 - 0.34 / height),
        ncols=len(keys), frameon=False, fontsize=8, handlelength=1.4, borderpad=0,
        columnspacing=1.4, borderaxespad=0.3, labelcolor=INK,
    )  # fmt: skip
