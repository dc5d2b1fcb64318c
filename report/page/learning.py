"""How runs learn: loss and evaluations, over steps and over seconds of training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from comm_plan import units
from comm_plan.report.page.axes import linear
from comm_plan.report.page.blocks import Figure
from comm_plan.report.page.chart import Point, Rule, Series, chart
from comm_plan.report.page.given import ShownRun

MOST_POINTS = 150
"""Longer curves go through the means of so many losses, or one in so many of the
evaluations, the last one among them."""

Place = Callable[[int], "float | None"]
"""From a step to its place on the horizontal axis, if it has one."""


def learning(runs: Sequence[ShownRun]) -> Iterator[Figure]:
    """Yield a pair of charts, over steps and over seconds, of each figure there is."""
    yield from _pair("training loss", runs, _losses)
    metrics = [e.metric for run in runs for e in run.record.evaluations]
    for metric in dict.fromkeys(metrics):
        yield from _pair(f"{metric}, held out", runs, _evaluations(metric))


Found = Callable[[ShownRun], Sequence[tuple[int, float]]]
"""The values of a run by step."""


def _pair(title: str, runs: Sequence[ShownRun], found: Found) -> Iterator[Figure]:
    for label, name, places in (
        ("step", _step, [float for _ in runs]),
        ("seconds of training", units.round_seconds, [_elapsed(run) for run in runs]),
    ):
        series = [
            Series(
                run.name,
                tuple(_points(run.name, found(run), place)),
                style,
                shapes=found is not _losses,
            )
            for style, (run, place) in enumerate(zip(runs, places, strict=True))
        ]
        series = [one for one in series if one.points]
        if series:
            yield _figure(title, label, name, series, _replans(runs, places))


def _figure(
    title: str,
    label: str,
    name: Callable[[float], str],
    series: Sequence[Series],
    rules: Sequence[Rule],
) -> Figure:
    points = [point for one in series for point in one.points]
    across = [*(p.x for p in points), *(r.x for r in rules if r.x is not None)]
    return chart(
        f"{title} over {label}",
        linear(label, across, name),
        linear(title, (p.y for p in points), _plain),
        series,
        rules=rules,
    )


def _points(
    name: str, values: Sequence[tuple[int, float]], place: Place
) -> Iterator[Point]:
    for step, value in values:
        at = place(step)
        if at is not None:
            yield Point(at, value, f"{name}, step {step}\n{value:.4g}")


def _elapsed(run: ShownRun) -> Place:
    """Return the seconds of training up to the end of a step, where recorded."""
    sums = [0.0, *accumulate(run.record.iterations_s)]

    def place(step: int) -> float | None:
        done = step - run.first_step + 1
        return sums[done] if len(sums) > 1 and 0 <= done < len(sums) else None

    return place


def _losses(run: ShownRun) -> list[tuple[int, float]]:
    """Return a loss for each step, or for the last of several the mean of them."""
    losses = run.record.losses
    first = run.record.steps - len(losses) + 1
    size = math.ceil(len(losses) / MOST_POINTS) or 1
    means = []
    for start in range(0, len(losses), size):
        chunk = losses[start : start + size]
        finite = [loss for loss in chunk if loss is not None]
        if finite:
            last = first + start + len(chunk) - 1
            means.append((last, math.fsum(finite) / len(finite)))
    return means


def _evaluations(metric: str) -> Found:
    def found(run: ShownRun) -> list[tuple[int, float]]:
        own = [e for e in run.record.evaluations if e.metric == metric]
        size = math.ceil(len(own) / MOST_POINTS) or 1
        drawn = own[(len(own) - 1) % size :: size]
        return [(evaluation.step, evaluation.value) for evaluation in drawn]

    return found


def _replans(runs: Sequence[ShownRun], places: Sequence[Place]) -> list[Rule]:
    rules = []
    for run, place in zip(runs, places, strict=True):
        for replan in run.record.replans:
            at = place(replan.step)
            if at is not None:
                rules.append(Rule(f"{run.name}: new plan", x=at))
    return rules


def _step(value: float) -> str:
    return f"{value:g}"


def _plain(value: float) -> str:
    return f"{value:.4g}"
