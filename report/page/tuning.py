"""What tuning tried: predictions against measurements, and how trials learnt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from comm_plan import units
from comm_plan.plans import Curve, Trial, Tuning
from comm_plan.plans.tuning import LARGEST_LOSS
from comm_plan.report.page.axes import linear
from comm_plan.report.page.blocks import (
    NONE,
    Block,
    Cell,
    Heading,
    Key,
    Section,
    Table,
    Text,
    seconds,
    section,
    times,
)
from comm_plan.report.page.chart import Point, Series, chart
from comm_plan.report.page.given import Given
from comm_plan.report.page.strips import Mark, Row, Strips, sample, strips

HEADER = (
    "plan", "gradients", "predicted", "measured", "measured / predicted",
    "against the baseline", "rounds: median, p95, iterations",
)  # fmt: skip


def tuning(given: Given) -> Section | None:
    """Return what was tried, what not, and why."""
    found = given.tuning
    return None if found is None else section("tuning", "Plans tried", _blocks(found))


def _blocks(tuning: Tuning) -> Iterator[Block]:
    yield Text(_setting(tuning))
    yield _strips(tuning)
    yield Table(
        "plans tried, the baseline first",
        HEADER,
        tuple(_row(tuning, trial) for trial in tuning.trials),
    )
    judged = [trial for trial in tuning.trials if trial.curves]
    if judged:
        yield _learning(judged)
    if tuning.not_tried:
        yield Heading("Not tried")
        yield Table(
            "plans that were not run",
            ("plan", "why"),
            tuple((Cell(n), Cell(why)) for n, why in tuning.not_tried.items()),
        )


def _setting(tuning: Tuning) -> str:
    judged = "iteration time" if tuning.objective == "time" else "loss over time"
    return (
        f"{tuning.workload} on {units.counted(tuning.world_size, 'rank')} by "
        f"{tuning.backend}, judged by {judged}; took {units.seconds(tuning.took_s)} of "
        f"a budget of {units.seconds(tuning.budget_s)}."
    )


def _strips(tuning: Tuning) -> Strips:
    rows = [_strip(tuning, trial) for trial in tuning.trials]
    values = [mark.at for row in rows for mark in row.marks]
    values += [end for row in rows for end in row.ends or ()]
    keys = [
        Key("predicted", sample(hollow=True)),
        Key("measured, up to p95 of the last round", sample(hollow=False)),
    ]
    axis = linear("iteration time", values, units.round_seconds)
    return strips("iteration time of each plan tried", axis, rows, keys)


def _strip(tuning: Tuning, trial: Trial) -> Row:
    predicted = f"{trial.name}\npredicted {units.seconds(trial.predicted_s)}"
    marks = [Mark(trial.predicted_s, predicted, hollow=True)]
    if trial.measured_s is not None:
        text = f"{trial.name}\nmeasured {units.seconds(trial.measured_s)}"
        marks.append(Mark(trial.measured_s, text))
    won, role = trial.name == tuning.winner, _role(tuning, trial)
    return Row(trial.name, tuple(marks), _ends(trial), role, strong=won)


def _ends(trial: Trial) -> tuple[float, float] | None:
    """Return the median and p95 of the last round on the clock of ``measured_s``."""
    if trial.measured_s is None or not trial.rounds or not trial.rounds[-1].median_s:
        return None
    last = trial.rounds[-1]
    return trial.measured_s, trial.measured_s * max(1.0, last.p95_s / last.median_s)


def _role(tuning: Tuning, trial: Trial) -> str:
    roles = []
    if trial is tuning.trials[0]:
        roles.append("baseline")
    if trial.name == tuning.winner:
        roles.append("winner")
    return ", ".join(roles)


def _row(tuning: Tuning, trial: Trial) -> tuple[Cell, ...]:
    measured, baseline_s = trial.measured_s, tuning.trials[0].measured_s
    role = _role(tuning, trial)
    error = measured / trial.predicted_s if measured and trial.predicted_s else None
    gain = baseline_s / measured if measured and baseline_s else None
    return (
        Cell(f"{trial.name} ({role})" if role else trial.name),
        Cell(_how(trial)),
        seconds(trial.predicted_s),
        seconds(measured),
        times(error),
        times(gain),
        Cell(_rounds(trial) or NONE),
    )


def _how(trial: Trial) -> str:
    if trial.local:
        return "local steps"
    return "exact" if trial.lossless else "compressed"


def _rounds(trial: Trial) -> str:
    return "; ".join(
        f"{units.seconds(each.median_s)}, {units.seconds(each.p95_s)}, "
        f"{each.iterations}"
        for each in trial.rounds
    )


def _learning(judged: Sequence[Trial]) -> Block:
    trainings = [
        (style, trial, curve)
        for style, trial in enumerate(judged)
        for curve in trial.curves
    ]
    curves = [
        Series(trial.name, tuple(_points(trial, curve)), style, shapes=False)
        for style, trial, curve in trainings
    ]
    diverged = [
        _training(trial, curve)
        for _, trial, curve in trainings
        if not all(map(_is_finite, curve.losses))
    ]
    points = [point for one in curves for point in one.points]
    return chart(
        "training loss over seconds of training",
        linear("seconds of training", (p.x for p in points), units.round_seconds),
        linear(
            "mean loss over a tenth of the dense plan's iterations",
            (p.y for p in points),
            "{:.4g}".format,
        ),
        curves,
        note=f"Diverged: {'; '.join(diverged)}." if diverged else "",
    )


def _points(trial: Trial, curve: Curve) -> Iterator[Point]:
    name = _training(trial, curve)
    for time_s, loss in zip(curve.seconds, curve.losses, strict=True):
        if _is_finite(loss):
            tip = f"{name}\n{loss:.4g} after {units.seconds(time_s)}"
            yield Point(time_s, loss, tip)


def _training(trial: Trial, curve: Curve) -> str:
    return f"{trial.name}, seed {curve.seed}"


def _is_finite(loss: float) -> bool:
    return abs(loss) <= LARGEST_LOSS
