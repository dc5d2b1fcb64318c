"""What runs send: by bucket, and over the steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from comm_plan import units
from comm_plan.report.page.axes import linear, logarithmic, ordinal
from comm_plan.report.page.blocks import Figure
from comm_plan.report.page.chart import Point, Series, chart
from comm_plan.report.page.given import ShownRun
from comm_plan.report.page.learning import MOST_POINTS
from comm_plan.report.page.sizes import BucketSize, run_sizes

CHANGED = 1.05
"""From this factor between its steps on, how much a run leaves out is drawn."""


def traffic(runs: Sequence[ShownRun]) -> Iterator[Figure]:
    """Yield ratios over the steps, and for runs of several buckets what each sends."""
    if any(map(_changes, runs)):
        yield _over_steps(runs)
    for run in runs:
        sizes = run_sizes(run.record)
        if len(sizes) > 1 and any(size.message for size in sizes):
            yield _figure(run.name, sizes)


def _changes(run: ShownRun) -> bool:
    """Return whether some steps send more than others, and none sends nothing."""
    steps = run.record.traffic.steps_nbytes if run.record.traffic else ()
    return bool(steps) and 0 < CHANGED * min(steps) <= max(steps)


def _over_steps(runs: Sequence[ShownRun]) -> Figure:
    series = [
        Series(run.name, tuple(_ratios(run)), style)
        for style, run in enumerate(runs)
        if _changes(run)
    ]
    points = [point for one in series for point in one.points]
    return chart(
        "ratio over step",
        linear("step", (point.x for point in points), "{:g}".format),
        logarithmic("dense bytes / bytes sent", (p.y for p in points), units.times),
        series,
    )


def _ratios(run: ShownRun) -> Iterator[Point]:
    """Yield the ratio of each step, or of several at the last of them."""
    sent = run.record.traffic
    assert sent is not None
    steps = sent.steps_nbytes
    first = run.record.steps - len(steps) + 1
    size = math.ceil(len(steps) / MOST_POINTS)
    for start in range(0, len(steps), size):
        chunk = steps[start : start + size]
        ratio = sent.dense_nbytes * len(chunk) / sum(chunk)
        last = first + start + len(chunk) - 1
        yield Point(last, ratio, f"{run.name}, step {last}\n{units.times(ratio)}")


def _figure(name: str, sizes: Sequence[BucketSize]) -> Figure:
    dense = tuple(
        Point(number, size.dense, _tip(number, size))
        for number, size in enumerate(sizes)
    )
    message = tuple(
        Point(number, size.message, _tip(number, size), size.message, size.dense)
        for number, size in enumerate(sizes)
    )
    series = [Series("sent", message, 0, line=False)]
    if any(size.message != size.dense for size in sizes):
        series.insert(0, Series("gradients", dense, 1, line=False, hollow=True))
    return chart(
        f"{name}: bytes by bucket, per step and rank",
        ordinal("bucket", len(sizes)),
        logarithmic("bytes", (p.y for p in (*dense, *message)), units.nbytes),
        series,
    )


def _tip(number: int, size: BucketSize) -> str:
    ratio = "" if size.ratio is None else f", {units.times(size.ratio)} less"
    sent = units.nbytes(size.message)
    return f"bucket {number}\n{sent} sent for {units.nbytes(size.dense)}{ratio}"
