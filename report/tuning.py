"""What a tuning says, as rows: its advice, and every plan predicted and measured."""

from __future__ import annotations

from collections.abc import Sequence

from comm_plan import units
from comm_plan.plans import Curve, Trial, Tuning
from comm_plan.plans.tuning import LARGEST_LOSS, TUNED_FILE
from comm_plan.report.facts import Fact, emulated

TRIAL_HEADER = ("plan", "sends", "predicted", "measured", "of DDP's", "iterations")


def tuning_rows(tuning: Tuning) -> list[Fact]:
    """Return the summary of a tuning."""
    took = f"{units.seconds(tuning.took_s)} of {units.seconds(tuning.budget_s)}"
    if not tuning.complete:
        took += ", ended early"
    return [
        ("workload", tuning.workload),
        ("ranks", f"{tuning.world_size} x {tuning.backend}"),
        *emulated(tuning.emulated_link),
        ("took", took),
        ("run", f"{TUNED_FILE}: {tuning.winner}"),
        ("advice", tuning.advice),
    ]


def trial_rows(tuning: Tuning) -> list[tuple[str, ...]]:
    """Return one row for each plan under :data:`TRIAL_HEADER`, the fastest first."""
    order = sorted(tuning.trials, key=lambda t: t.measured_s or float("inf"))
    return [_trial(trial, tuning.trials[0]) for trial in order]


JUDGED_HEADER = ("plan", "seeds", "of training", "loss at the end")


def judged_rows(tuning: Tuning) -> list[tuple[str, ...]]:
    """Return one row under :data:`JUDGED_HEADER` for each plan that was judged by loss.

    The loss is a running mean, of each seed; the seconds are the seeds' mean.
    """
    return [
        _judged(trial.name, curves)
        for trial in tuning.trials
        if (curves := [curve for curve in trial.curves if curve.seconds])
    ]


def _judged(name: str, curves: Sequence[Curve]) -> tuple[str, ...]:
    seconds = sum(curve.seconds[-1] for curve in curves) / len(curves)
    losses = [curve.losses[-1] for curve in curves]
    ends = (f"{x:.3g}" if x <= LARGEST_LOSS else "diverged" for x in losses)
    return name, str(len(curves)), units.seconds(seconds), ", ".join(ends)


def _trial(trial: Trial, baseline: Trial) -> tuple[str, ...]:
    measured = share = "-"
    if trial.measured_s is not None:
        measured = units.seconds(trial.measured_s)
        if baseline.measured_s:
            share = units.percent(trial.measured_s / baseline.measured_s)
    return (
        trial.name,
        "all" if trial.lossless else "less",
        units.seconds(trial.predicted_s),
        measured,
        share,
        str(sum(round_.iterations for round_ in trial.rounds)),
    )
