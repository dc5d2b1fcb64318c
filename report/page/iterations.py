"""How long the iterations of each run took: their distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from comm_plan import units
from comm_plan.report.page.axes import linear
from comm_plan.report.page.blocks import Figure
from comm_plan.report.page.chart import Point, Rule, Series, chart
from comm_plan.report.page.given import ShownRun
from comm_plan.report.spread import warm

BINS = 32
LONGEST = 2.0
"""Where a chart ends, in times of the 90th percentile; slower ones are counted."""


def iterations(runs: Sequence[ShownRun]) -> Iterator[Figure]:
    """Yield the distribution of each run's iteration times, warm-up left out."""
    for style, run in enumerate(runs):
        times = sorted(warm(run.record))
        if len(times) > 1 and not math.isclose(times[0], times[-1]):
            yield _figure(run, times, style)


def _figure(run: ShownRun, times: Sequence[float], style: int) -> Figure:
    last = min(times[-1], LONGEST * times[int(0.9 * (len(times) - 1))])
    title, counted = "iteration times", "iterations"
    if run.record.local_steps is not None:
        title, counted = "iteration times, means of rounds", "rounds"
    points = tuple(_bins(times, last, counted))
    rules = [Rule("median", x=run.record.iteration.median_s)]
    if run.record.predicted_iteration_s is not None:
        rules.append(Rule("predicted", x=run.record.predicted_iteration_s))
    across = [times[0], last, *(rule.x for rule in rules if rule.x is not None)]
    slower = sum(time_s > last for time_s in times)
    return chart(
        f"{run.name}: {title}",
        linear("iteration time", across, units.round_seconds, from_zero=False),
        linear(counted, (point.y for point in points), "{:g}".format),
        [Series(run.name, points, style, line=False, column=(last - times[0]) / BINS)],
        rules=rules,
        note=f"{slower} slower, up to {units.seconds(times[-1])}." if slower else "",
    )


def _bins(times: Sequence[float], last: float, counted: str) -> Iterator[Point]:
    counts, edges = np.histogram(times, BINS, (times[0], last))
    for count, (start, stop) in zip(
        counts.tolist(), pairwise(edges.tolist()), strict=True
    ):
        tip = (
            f"{units.seconds(start)} to {units.seconds(stop)}\n"
            f"{count} of {len(times)} {counted}"
        )
        yield Point((start + stop) / 2, count, tip)
