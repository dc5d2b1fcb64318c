"""Runs of several plans beside each other: was it worth it?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from rich import box
from rich.table import Table

from comm_plan import units
from comm_plan.plans import RunRecord
from comm_plan.report.run import computation_off, prediction_error

FALLING = ("loss", "perplexity")
"""Metrics that are better the lower they are."""


DRIFT = 0.1
"""Computation that is off by less needs no word."""


def seconds_to(record: RunRecord, metric: str, value: float) -> float | None:
    """Return after how many seconds of training ``metric`` was first ``value``.

    What is in FALLING has to come down to it, anything else up to it. Only iterations
    count, and what was evaluated: mostly the ends of epochs.

    Returns:
        None if it never was.
    """
    elapsed_s = [0.0, *accumulate(record.iterations_s)]
    for evaluation in record.evaluations:
        now = evaluation.value
        reached = now <= value if metric in FALLING else now >= value
        if evaluation.metric == metric and reached:
            return elapsed_s[evaluation.step]
    return None


def comparison(
    records: Sequence[tuple[str, RunRecord]], target: float | None = None
) -> Table:
    """Return a row for each run: predicted, measured, sent, and how good it is.

    Args:
        records: by the plan's name; the first is what the others are compared with.
        target: value of the metric that the time to is wanted of.
    """
    first, baseline = records[0]
    base = baseline.iteration.median_s
    metric = next((e.metric for _, r in records for e in r.evaluations), None)
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title="side by side, in turns",
        caption=f"speed: over {first}; sent: by a rank in a step{_drift(baseline)}",
    )
    table.add_column("plan", no_wrap=True)
    names = ["predicted", "measured", "off", "speed", "sent"]
    names += [metric] if metric else []
    names += [f"{target:g} after"] if metric and target is not None else []
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for name, record in records:
        cells = [*_times(record, base), *_sent(record)]
        if metric:
            last = [e.value for e in record.evaluations if e.metric == metric]
            cells.append(f"{last[-1]:.4g}" if last else "-")
            if target is not None:
                after_s = seconds_to(record, metric, target)
                cells.append("never" if after_s is None else units.seconds(after_s))
        table.add_row(name, *cells)
    return table


def _drift(baseline: RunRecord) -> str:
    """Return what must be known if the machine is slower or faster than it was."""
    off = computation_off(baseline)
    if off is None or abs(off) < DRIFT:
        return ""
    than, now = ("more", "slower") if off > 0 else ("less", "faster")
    return (
        f"\ncomputation took {units.percent(abs(off))} {than} than predicted: the "
        f"machine is {now} than when it was measured"
    )


def _times(record: RunRecord, base_s: float) -> list[str]:
    measured_s, predicted_s = record.iteration.median_s, record.predicted_iteration_s
    error = prediction_error(record)
    return [
        "-" if predicted_s is None else units.seconds(predicted_s),
        units.seconds(measured_s),
        "-" if error is None else f"{error:+.1%}",
        units.times(base_s / measured_s) if measured_s else "-",
    ]


def _sent(record: RunRecord) -> list[str]:
    return [
        "-" if record.traffic is None else units.nbytes(record.traffic.message_nbytes)
    ]
