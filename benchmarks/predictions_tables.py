"""The tables of predictions in ``docs/results.md`` and ``README.md``, from results.

::

    python -m comm_plan.benchmarks.predictions_tables    # writes them there
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from comm_plan import units
from comm_plan.benchmarks.prediction_rounds import DDP
from comm_plan.benchmarks.predictions_on_hosts import TUNED
from comm_plan.benchmarks.tables import RESULTS, Errors, Line, errors_of, markdown
from comm_plan.plans.pages import filled

ROOT = Path(__file__).parents[1]
TABLES = {
    "predictions-replay": {
        "1 Gbit/s": "predictions-replay-4x1gbit",
        "10 Gbit/s": "predictions-replay-4x10gbit",
    },
    "predictions-cnn": {
        "100 Mbit/s": "predictions-cnn-4x100mbit",
        "1 Gbit/s": "predictions-cnn-4x1gbit",
        "10 Gbit/s": "predictions-cnn-4x10gbit",
        "no limit": "predictions-cnn-4xnone",
    },
    "predictions-cnn-slower": {
        "10 Gbit/s": "predictions-cnn-4x10gbit-slower-machine",
        "no limit": "predictions-cnn-4xnone-slower-machine",
    },
    "predictions-eight": {
        "CifarNet, 100 Mbit/s": "predictions-replay-small-8x100mbit-from-4",
        "ResNet-50, 1 Gbit/s": "predictions-replay-8x1gbit-from-4",
    },
}
"""By the name of a table in ``docs/results.md``: the result of each of its columns."""

GAIN = "iteration"
"""The table in ``README.md``: what an iteration takes on each link."""

NARROW = 2
"""A table of so many results has room for speed-ups."""

CLOSE = 0.1
"""Predictions that are off by no more are counted."""


@dataclass(frozen=True)
class Result:
    """A column.

    Attributes:
        lines: each variant, by its name.
        at_rounds_speed: how far off predictions would have been, had computation been
            as fast in the profile as it was within the rounds.
    """

    lines: Mapping[str, Line]
    at_rounds_speed: Errors


def result(name: str) -> Result:
    """Return what ``benchmarks/results/NAME.json`` holds."""
    figures = json.loads((RESULTS / f"{name}.json").read_text())
    lines = {row["name"]: Line(**row) for row in figures["rows"]}
    return Result(
        {name: lines[name] for name in figures["times_s"] if name in lines},
        Errors(**figures["at_rounds_speed"]),
    )


def table(columns: Mapping[str, str]) -> str:
    """Return every variant of some results: measured, and how far off that was.

    Of few results also how many times as fast as DDP.

    Args:
        columns: names of results by their headings.
    """
    results = {heading: result(name) for heading, name in columns.items()}
    head = ["plan"]
    width = 3 if len(results) <= NARROW else 2
    for heading in results:
        head += [heading, "error", "speed-up"][:width]
    variants = dict.fromkeys(name for each in results.values() for name in each.lines)
    rows: list[list[object]] = []
    for name in variants:
        cells = [_cells(each.lines, name)[:width] for each in results.values()]
        rows.append([name, *chain.from_iterable(cells)])
    for name, told in SUMMARIES.items():
        cells = [("", told(each), "")[:width] for each in results.values()]
        rows.append([name, *chain.from_iterable(cells)])
    return markdown(head, rows) + "\n"


def gain() -> str:
    """Return what an iteration of the CNN takes, on each link, and was predicted to."""
    shown = {
        DDP: "PyTorch DDP",
        "ddp, fp16 hook": "DDP, fp16 hook",
        "optimal": "optimal, dense",
        "tuned": "what `tune` chose",
        TUNED: "what `tune --accuracy loss` chose",
    }
    rows = []
    for link, name in reversed(TABLES["predictions-cnn"].items()):
        lines = result(name).lines
        rows.append([link, *(_told(lines[variant]) for variant in shown)])
    return markdown(["link", *shown.values()], rows) + "\n"


def _cells(lines: Mapping[str, Line], name: str) -> tuple[object, ...]:
    if name not in lines:
        return (None, None, None)
    line = lines[name]
    speed_up = lines[DDP].measured_s / line.measured_s
    error = None if line.error is None else _percent(line.error)
    return units.seconds(line.measured_s), error, units.times(speed_up)


def _all_off(column: Result) -> str | None:
    return _off(errors_of(column.lines.values()))


def _steadily_off(column: Result) -> str | None:
    return _off(column.at_rounds_speed)


def _off(off: Errors | None) -> str | None:
    if off is None:
        return None
    return f"{100 * off.middle:.1f} %, {_percent(off.worst)}"


def _within(column: Result) -> str:
    errors = [each.error for each in column.lines.values() if each.error is not None]
    return f"{sum(abs(error) <= CLOSE for error in errors)} of {len(errors)}"


def _behind(column: Result) -> str | None:
    if TUNED not in column.lines:
        return None
    fastest_s = min(line.measured_s for line in column.lines.values())
    return f"{100 * (column.lines[TUNED].measured_s / fastest_s - 1):.1f} %"


SUMMARIES: dict[str, Callable[[Result], str | None]] = {
    "median, worst error": _all_off,
    "within 10 %": _within,
    "at the rounds' speed: median, worst": _steadily_off,
    f"{TUNED}: behind the fastest": _behind,
}
"""What the last rows tell of each column."""


def _percent(share: float) -> str:
    return f"{round(100 * share):+d} %"


def _told(line: Line) -> str:
    measured = units.seconds(line.measured_s)
    if line.predicted_s is None:
        return measured
    return f"{measured} ({units.seconds(line.predicted_s)})"


def pages() -> dict[Path, str]:
    """Return the text of each page with the tables of today."""
    results, readme = ROOT / "docs" / "results.md", ROOT / "README.md"
    text = results.read_text(encoding="utf-8")
    for name, columns in TABLES.items():
        text = filled(text, name, table(columns))
    return {
        results: text,
        readme: filled(readme.read_text(encoding="utf-8"), GAIN, gain()),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
