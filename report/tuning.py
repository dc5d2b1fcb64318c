"""What a tuning says, as rows: its advice, and every plan predicted and measured."""

from __future__ import annotations

from comm_plan import units
from comm_plan.plans import Trial, Tuning
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
        ("run", f"{tuning.winner}: {tuning.trial(tuning.winner).plan}"),
        ("advice", tuning.advice),
    ]


def trial_rows(tuning: Tuning) -> list[tuple[str, ...]]:
    """Return one row for each plan under :data:`TRIAL_HEADER`, the fastest first."""
    order = sorted(tuning.trials, key=lambda t: t.measured_s or float("inf"))
    return [_trial(trial, tuning.trials[0]) for trial in order]


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
