"""Runs: what they took, how they learn, what they send."""

from __future__ import annotations

from collections.abc import Iterator

from comm_plan import units
from comm_plan.plans import RunRecord
from comm_plan.report.page.blocks import (
    NONE,
    Block,
    Cell,
    Figures,
    Heading,
    Section,
    Table,
    count,
    nbytes,
    seconds,
    section,
    times,
)
from comm_plan.report.page.drift import drift
from comm_plan.report.page.given import Given, ShownRun
from comm_plan.report.page.iterations import iterations
from comm_plan.report.page.learning import learning
from comm_plan.report.page.traffic import traffic

HEADER = (
    "run", "steps", "skipped", "min", "median", "p95", "predicted",
    "measured / predicted", "sent per step", "ratio", "loss", "evaluation",
)  # fmt: skip


def runs(given: Given) -> Section | None:
    """Return all runs side by side."""
    return section("runs", "Runs", _blocks(given)) if given.runs else None


def _blocks(given: Given) -> Iterator[Block]:
    yield Table(
        "iteration times without warm-up, means of the ranks; bytes of one rank",
        HEADER,
        tuple(_row(run) for run in given.runs),
    )
    for title, figures in (
        ("Learning", learning(given.runs)),
        ("Iterations and traffic", [*iterations(given.runs), *traffic(given.runs)]),
    ):
        if found := tuple(figures):
            yield Heading(title)
            yield Figures(found)
    if drifting := tuple(drift(given.runs)):
        yield Heading("Drift from the prediction")
        yield from drifting


def _row(run: ShownRun) -> tuple[Cell, ...]:
    record, measured = run.record, run.record.iteration
    took = [measured.min_s, measured.median_s, measured.p95_s]
    predicted_s, sent = record.predicted_iteration_s, record.traffic
    over = measured.median_s / predicted_s if predicted_s and measured.count else None
    return (
        Cell(run.name),
        count(record.steps),
        _skipped(record),
        *(seconds(time_s if measured.count else None) for time_s in took),
        seconds(predicted_s),
        times(over),
        nbytes(sent.message_nbytes if sent else None),
        times(sent.compression_ratio if sent and sent.message_nbytes else None),
        _number(record.final_loss),
        _last_evaluation(run),
    )


def _skipped(record: RunRecord) -> Cell:
    if record.local_steps is None:
        return count(record.skipped_steps)
    undone = record.skipped_steps
    return Cell(units.counted(undone, "round"), undone)


def _number(value: float | None) -> Cell:
    return Cell(NONE) if value is None else Cell(f"{value:.4g}", value)


def _last_evaluation(run: ShownRun) -> Cell:
    if not run.record.evaluations:
        return Cell(NONE)
    last = run.record.evaluations[-1]
    return Cell(f"{last.metric} {last.value:.4g}", last.value)
