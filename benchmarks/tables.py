"""Predicted against measured, as Markdown tables."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comm_plan import units
from comm_plan.plans import Plan, Profile

RESULTS = Path(__file__).parent / "results"
MISSING = "-"


@dataclass(frozen=True)
class Line:
    """What one variant took; ``predicted_s`` is None for what has no plan.

    ``message_nbytes`` is what one rank hands to the transport in a step.
    """

    name: str
    buckets: int | None
    predicted_s: float | None
    measured_s: float
    p95_s: float
    iterations: int
    message_nbytes: int | None = None

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1."""
        if self.predicted_s is None:
            return None
        return self.predicted_s / self.measured_s - 1


def line(
    name: str, seconds: Sequence[float], plan: Plan | None, profile: Profile
) -> Line:
    """Return the row of a variant that took ``seconds``, iteration by iteration."""
    predicted = None if plan is None else plan.predicted
    return Line(
        name=name,
        buckets=None if plan is None else len(plan.buckets),
        predicted_s=None if predicted is None else predicted.iteration_s,
        measured_s=statistics.median(seconds),
        p95_s=statistics.quantiles(seconds, n=20)[-1],
        iterations=len(seconds),
        message_nbytes=None if plan is None else message_nbytes(plan, profile),
    )


def lines(
    times: Mapping[str, Sequence[float]], plans: Mapping[str, Path], profile: Profile
) -> list[Line]:
    """Return the rows, fastest first."""
    loaded = {name: Plan.load(path) for name, path in plans.items()}
    rows = [line(n, seconds, loaded.get(n), profile) for n, seconds in times.items()]
    return sorted(rows, key=lambda row: row.measured_s)


def message_nbytes(plan: Plan, profile: Profile) -> int:
    """Return what one rank contributes in a step, as the plan's specs count it."""
    shape = {tensor.name: tensor.shape for tensor in profile.tensors}
    total = 0
    for bucket in plan.buckets:
        shapes = [shape[name] for name in bucket.tensors]
        total += bucket.compressor.planned_nbytes(shapes, bucket.collective)
    return total


def comparison(rows: Sequence[Line], reference_s: float) -> str:
    """Return the variants' table; the last column is ``reference_s`` over theirs."""
    head = ["variant", "buckets", "message bytes a step", "predicted"]
    head += ["measured (median)", "p95", "error", "speed-up"]
    return markdown(
        head,
        [
            [
                row.name,
                row.buckets,
                row.message_nbytes and units.nbytes(row.message_nbytes),
                row.predicted_s and units.seconds(row.predicted_s),
                units.seconds(row.measured_s),
                units.seconds(row.p95_s),
                None if row.error is None else f"{row.error:+.1%}",
                f"{reference_s / row.measured_s:.2f}",
            ]
            for row in rows
        ],
    )


@dataclass(frozen=True)
class Errors:
    """How far off the predictions of some variants were.

    Attributes:
        middle: the median, whatever the sign.
        worst: the one that is farthest from 0.
        worst_of: whose.
    """

    middle: float
    worst: float
    worst_of: str


def errors_of(rows: Iterable[Line]) -> Errors | None:
    """Return how far off predictions were; None: nothing was predicted."""
    errors = {row.name: row.error for row in rows if row.error is not None}
    if not errors:
        return None
    worst = max(errors, key=lambda name: abs(errors[name]))
    middle = statistics.median(abs(error) for error in errors.values())
    return Errors(middle, errors[worst], worst)


def error_sentence(rows: Iterable[Line]) -> str:
    """Return the median and the worst prediction error in words."""
    off = errors_of(rows)
    if off is None:
        return "nothing was predicted"
    return f"median error {off.middle:.1%}, worst {off.worst:+.1%} ({off.worst_of})"


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table, its first column to the left; None is a dash."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for row in rows:
        cells = (MISSING if cell is None else str(cell) for cell in row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def save(name: str, paragraphs: Sequence[str], figures: Mapping[str, Any]) -> str:
    """Write ``results/NAME.md`` and ``results/NAME.json``; return the former's text."""
    RESULTS.mkdir(exist_ok=True)
    text = "\n\n".join(paragraphs) + "\n"
    (RESULTS / f"{name}.md").write_text(text)
    (RESULTS / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
    return text
