"""Buckets of plans and runs: what they hold, what they send, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from comm_plan.plans import Bucket, BucketTraffic, Timing
from comm_plan.report.page.blocks import (
    Block,
    Cell,
    Section,
    Table,
    count,
    nbytes,
    seconds,
    section,
    times,
)
from comm_plan.report.page.given import Given, ShownPlan, ShownRun
from comm_plan.report.page.sizes import BucketSize, run_sizes, step_sizes
from comm_plan.report.page.subject import find_subject
from comm_plan.report.plan import compressor_text

_SIZES = ("dense", "message", "ratio")
_MOMENTS = ("ready", "start", "finish")


def buckets(given: Given) -> Section | None:
    """Return the buckets of every plan and run, in launch order."""
    return section("buckets", "Buckets", _tables(given))


def _tables(given: Given) -> Iterator[Block]:
    tables = list(_each(given))
    subject = find_subject(given)
    first = subject.plan if subject and subject.plan else None
    for shown, table in tables:
        folded = len(tables) > 1 and first is not None and shown is not first
        yield replace(table, folded=folded)


def _each(given: Given) -> Iterator[tuple[ShownPlan | None, Table]]:
    for shown in given.plans:
        sizes = step_sizes(shown.plan, given.profile)
        runs = [run for run in given.runs if run.plan is shown]
        if not runs:
            yield shown, _of_plan(shown, sizes, None)
        for run in runs:
            fits = len(run_sizes(run.record)) == len(shown.plan.buckets)
            measured = run_sizes(run.record) if fits else sizes
            yield shown, _of_plan(shown, measured, run)
    for run in given.runs:
        if run.plan is None and run.record.traffic is not None:
            yield None, _of_run(run, run.record.traffic.buckets)


def _of_plan(
    shown: ShownPlan, sizes: Sequence[BucketSize], run: ShownRun | None
) -> Table:
    plan = shown.plan
    timings = (
        ("predicted", plan.predicted.timing if plan.predicted else None),
        ("measured", run.timing if run else None),
    )
    columns = [
        [[count(number)] for number in range(len(plan.buckets))],
        [_held(bucket) for bucket in plan.buckets],
        *([list(map(_weight, sizes))] if sizes else []),
        [_way(bucket) for bucket in plan.buckets],
        *(_moments(timing) for _, timing in timings if timing is not None),
    ]
    header = ["bucket", "tensors", "which", *(_SIZES if sizes else ())]
    header += ["compressor", "collective"]
    for when, timing in timings:
        if timing is not None:
            header += [f"{moment}, {when}" for moment in _MOMENTS]
    title = f"{(run or shown).name}: buckets in launch order"
    return Table(title, tuple(header), _joined(columns))


def _of_run(run: ShownRun, traffic: Sequence[BucketTraffic]) -> Table:
    header = ["bucket", "tensors", *_SIZES, "compressor", "collective"]
    columns = [
        [[count(number)] for number in range(len(traffic))],
        [[count(bucket.tensors)] for bucket in traffic],
        list(map(_weight, run_sizes(run.record))),
        [[Cell(bucket.kind), Cell(bucket.collective)] for bucket in traffic],
    ]
    timing = run.record.timing
    if timing is not None and len(timing.buckets) == len(traffic):
        header += [f"{moment}, measured" for moment in _MOMENTS]
        columns.append(_moments(timing))
    title = f"{run.name}: buckets in launch order"
    return Table(title, tuple(header), _joined(columns))


def _joined(columns: Sequence[Sequence[list[Cell]]]) -> tuple[tuple[Cell, ...], ...]:
    """Return rows of the cells that stand side by side."""
    return tuple(
        tuple(cell for cells in row for cell in cells)
        for row in zip(*columns, strict=True)
    )


def _held(bucket: Bucket) -> list[Cell]:
    first, last = bucket.tensors[0], bucket.tensors[-1]
    names = first if first == last else f"{first} to {last}"
    return [count(len(bucket.tensors)), Cell(names)]


def _weight(size: BucketSize) -> list[Cell]:
    return [nbytes(size.dense), nbytes(size.message), times(size.ratio)]


def _way(bucket: Bucket) -> list[Cell]:
    compressor = compressor_text(bucket.compressor, len(bucket.tensors))
    return [Cell(compressor), Cell(bucket.collective)]


def _moments(timing: Timing) -> list[list[Cell]]:
    return [
        [seconds(bucket.ready_s), seconds(bucket.start_s), seconds(bucket.finish_s)]
        for bucket in timing.buckets
    ]
