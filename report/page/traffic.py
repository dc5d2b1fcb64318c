"""What runs send, by bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from comm_plan import units
from comm_plan.report.page.axes import logarithmic, ordinal
from comm_plan.report.page.blocks import Figure
from comm_plan.report.page.chart import Point, Series, chart
from comm_plan.report.page.given import ShownRun
from comm_plan.report.page.sizes import BucketSize, run_sizes


def traffic(runs: Sequence[ShownRun]) -> Iterator[Figure]:
    """Yield for each run of several buckets what each of them sends."""
    for run in runs:
        sizes = run_sizes(run.record)
        if len(sizes) > 1 and any(size.dense for size in sizes):
            yield _figure(run.name, sizes)


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
