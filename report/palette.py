"""One colour per lane, told apart by colour-blind readers too (Okabe and Ito)."""

from __future__ import annotations

from comm_plan.report.timeline import Lane, Span

COLORS: dict[Lane, str] = {
    "forward": "#56b4e9",
    "backward": "#0072b2",
    "compression": "#cc79a7",
    "update": "#009e73",
    "communication": "#e69f00",
    "decompression": "#8f4a73",
    "local steps": "#f0e442",
}
"""Curves take them in this order: yellow, which is hard to see on white, comes last."""

EXPOSED = "#8a3000"
"""Marks communication that nothing hides."""

INK = "#1f2328"
QUIET_INK = "#59636e"

_PALER = 0.3


def color(span: Span) -> str:
    """Return the span's colour; every other bucket is paler, to see where one ends."""
    base = COLORS[span.lane]
    return paler(base) if span.bucket is not None and span.bucket % 2 else base


def paler(color: str) -> str:
    """Return ``color`` (``#rrggbb``) mixed with some white."""
    channels = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + (255 - c) * _PALER):02x}" for c in channels)
