"""Pictures of benchmarks' results, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO

from matplotlib.figure import Figure

from comm_plan.report.palette import COLORS, INK, QUIET_INK

WIDTH_INCHES = 8.0
BAR_INCHES = 0.26
HEAD_INCHES = 0.9
DPI = 130


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
    stream = BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": "comm-plan"})
    return stream.getvalue()
