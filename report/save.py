"""Timelines into a file; its name says the format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from comm_plan.plans import write_atomically
from comm_plan.report.perfetto import to_trace
from comm_plan.report.png import png
from comm_plan.report.timeline import Timeline


def save(timelines: Sequence[Timeline], path: Path, title: str) -> None:
    """Write ``timelines`` as ``.png``, or as ``.json`` (Perfetto's trace).

    Raises:
        InputError: matplotlib is missing for ``.png``.
        OutputError: the file cannot be written.
    """
    is_png = path.suffix == ".png"
    write_atomically(path, png(timelines, title) if is_png else to_trace(timelines))
