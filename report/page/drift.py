"""How far runs are from what was predicted of each bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from comm_plan import units
from comm_plan.plans import Timing
from comm_plan.report.page.axes import logarithmic, ordinal
from comm_plan.report.page.blocks import Block, Cell, Table, Text, seconds, times
from comm_plan.report.page.chart import Point, Rule, Series, chart
from comm_plan.report.page.given import ShownRun

Pair = tuple[int, str, Timing, Timing]
"""A run's look, its name, its predicted timing, and its measured one."""


def drift(runs: Sequence[ShownRun]) -> Iterator[Block]:
    """Yield measured over predicted, and when runs went on by another plan."""
    pairs = [pair for style, run in enumerate(runs) for pair in _pair(style, run)]
    if pairs:
        yield _figure(pairs)
        for _, name, predicted, measured in pairs:
            yield _table(name, predicted, measured)
    for run in runs:
        for replan in run.record.replans:
            yield Text(
                f"{run.name} went on by another plan from step {replan.step} on: "
                f"{replan.reason}. An iteration was expected to take "
                f"{units.seconds(replan.expected_s)}, then "
                f"{units.seconds(replan.corrected_s)}; by the new plan "
                f"{units.seconds(replan.predicted_s)}."
            )


def _pair(style: int, run: ShownRun) -> Iterator[Pair]:
    predicted, measured = run.plan and run.plan.plan.predicted, run.timing
    if predicted and predicted.timing and measured:
        yield style, run.name, predicted.timing, measured


def _ratio(measured_s: float, predicted_s: float) -> float | None:
    return measured_s / predicted_s if predicted_s > 0 else None


def _figure(pairs: Sequence[Pair]) -> Block:
    series = [
        Series(name, tuple(_points(name, predicted, measured)), style, line=False)
        for style, name, predicted, measured in pairs
    ]
    ratios = [point.y for one in series for point in one.points]
    return chart(
        "communication of each bucket, measured over predicted",
        ordinal("bucket", max(len(timing.buckets) for _, _, timing, _ in pairs)),
        logarithmic("measured / predicted", [*ratios, 1.0], _times, base=2),
        series,
        rules=[Rule(y=1.0)],
        note="1x: as predicted; the time from when the channel takes a bucket to when "
        "its means are in place.",
    )


def _times(ratio: float) -> str:
    return f"{ratio:g}x"


def _points(name: str, predicted: Timing, measured: Timing) -> Iterator[Point]:
    both = zip(predicted.buckets, measured.buckets, strict=True)
    for number, (expected, found) in enumerate(both):
        ratio = _ratio(found.busy_s, expected.busy_s)
        if ratio is not None:
            tip = (
                f"{name}, bucket {number}: {units.times(ratio)}\n"
                f"{units.seconds(found.busy_s)} measured, "
                f"{units.seconds(expected.busy_s)} predicted"
            )
            yield Point(number, ratio, tip)


def _table(name: str, predicted: Timing, measured: Timing) -> Table:
    rows = [
        ("forward", predicted.backward_start_s, measured.backward_start_s),
        ("backward and compression", predicted.backward_s, measured.backward_s),
        ("last bucket finished", _end_s(predicted), _end_s(measured)),
    ]
    both = zip(predicted.buckets, measured.buckets, strict=True)
    for number, (expected, found) in enumerate(both):
        rows.append((f"bucket {number}", expected.busy_s, found.busy_s))
    return Table(
        f"{name}: predicted and measured durations",
        ("what", "predicted", "measured", "measured / predicted"),
        tuple(
            (Cell(what), seconds(a), seconds(b), times(_ratio(b, a)))
            for what, a, b in rows
        ),
        folded=True,
    )


def _end_s(timing: Timing) -> float:
    return max(bucket.finish_s for bucket in timing.buckets)
