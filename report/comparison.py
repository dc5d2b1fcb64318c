"""Runs of several plans beside each other: was it worth it?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table

from comm_plan import units
from comm_plan.plans import Evaluation, RunRecord
from comm_plan.report.run import computation_off, prediction_error
from comm_plan.report.spread import overlap

FALLS = {"loss": True, "perplexity": True, "accuracy": False}
"""Whether a metric is better the lower it is, of those that are known by name."""

DRIFT = 0.1
"""Computation that is off by less needs no word."""


def has_to_fall(metric: str, first: float, target: float) -> bool:
    """Return whether ``metric`` gets to ``target`` from above.

    Args:
        metric: its name, which decides if it is in :data:`FALLS`.
        first: the value of the first evaluation; one above the target has to fall.
        target: the value to get to.
    """
    return FALLS.get(metric, first > target)


def seconds_to(
    record: RunRecord, metric: str, target: float, *, falls: bool
) -> float | None:
    """Return after how many seconds of training ``metric`` was first at ``target``.

    Only iterations count, and what was evaluated: mostly the ends of epochs.

    Args:
        record: of all steps of the run, not from where it was resumed.
        metric: its name.
        target: the value to get to.
        falls: whether it has to come down to it, not up.

    Returns:
        None if it never was there.
    """
    for evaluation in record.evaluations:
        now = evaluation.value
        reached = now <= target if falls else now >= target
        if evaluation.metric == metric and reached:
            return math.fsum(record.iterations_s[: evaluation.step])
    return None


def comparison(
    records: Sequence[tuple[str, RunRecord]],
    target: float | None = None,
    how: str = "side by side",
) -> Table:
    """Return a row for each run: predicted, measured, sent, and how good it is.

    Args:
        records: by the plan's name; the first is what the others are compared with.
        target: value of the metric that the time to is wanted of.
        how: they were measured.
    """
    first, base = records[0][0], records[0][1].iteration.median_s
    evaluated = next((e for _, r in records for e in r.evaluations), None)
    metric = None if evaluated is None else evaluated.metric
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=how,
        caption=f"speed: over {first}; sent: by a rank in a step{_drift(records)}"
        f"{_noise(records)}",
    )
    table.add_column("run", overflow="fold")
    names = ["predicted", "measured", "off", "speed", "sent"]
    names += [metric] if metric else []
    names += [f"{target:g} after"] if metric and target is not None else []
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    for name, record in records:
        cells = [*_times(record, base), _sent(record)]
        if evaluated is not None:
            cells += _quality(record, evaluated, target)
        table.add_row(name, *cells)
    return table


def _drift(records: Sequence[tuple[str, RunRecord]]) -> str:
    """Return what must be known where computation was slower or faster than predicted.

    Only if it was so in all runs that have a prediction it is the machine that is.
    """
    offs = {name: computation_off(record) for name, record in records}
    known = {name: off for name, off in offs.items() if off is not None}
    large = {name: off for name, off in known.items() if abs(off) >= DRIFT}
    if not large:
        return ""
    if large.keys() < known.keys() or len({off > 0 for off in large.values()}) > 1:
        told = (f"{_more_or_less(off)} in {name}" for name, off in large.items())
        return f"\ncomputation took {', '.join(told)} than predicted"
    off = statistics.median(large.values())
    now = "slower" if off > 0 else "faster"
    return (
        f"\ncomputation took {_more_or_less(off)} than predicted: the machine is {now} "
        "than when it was measured, or has other threads (OMP_NUM_THREADS)"
    )


def _noise(records: Sequence[tuple[str, RunRecord]]) -> str:
    """Return which runs cannot be told from the first by their iterations."""
    first, base = records[0]
    near = [name for name, record in records[1:] if overlap(base, record)]
    if not near:
        return ""
    return (
        f"\nmay be noise: the speed of {', '.join(near)}, the middle halves of whose "
        f"iterations overlap with those of {first}"
    )


def _more_or_less(off: float) -> str:
    return f"{units.percent(abs(off))} {'more' if off > 0 else 'less'}"


def _quality(
    record: RunRecord, first: Evaluation, target: float | None
) -> Iterator[str]:
    """Yield the last value of the metric of ``first``, and the time to ``target``."""
    last = [e.value for e in record.evaluations if e.metric == first.metric]
    yield f"{last[-1]:.4g}" if last else "-"
    if target is not None and (not last or len(record.iterations_s) < record.steps):
        yield "-"  # of a run that was not evaluated, was resumed, or has no times
    elif target is not None:
        falls = has_to_fall(first.metric, first.value, target)
        after_s = seconds_to(record, first.metric, target, falls=falls)
        yield "never" if after_s is None else units.seconds(after_s)


def _times(record: RunRecord, base_s: float) -> list[str]:
    measured_s, predicted_s = record.iteration.median_s, record.predicted_iteration_s
    error = prediction_error(record)
    return [
        "-" if predicted_s is None else units.seconds(predicted_s),
        units.seconds(measured_s) if measured_s else "-",
        "-" if error is None else units.deviation(error),
        units.times(base_s / measured_s) if measured_s else "-",
    ]


def _sent(record: RunRecord) -> str:
    sent = record.traffic
    return "-" if sent is None else units.nbytes(sent.message_nbytes)
