"""What to run, and in one sentence why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from comm_plan import units
from comm_plan.plans import Trial

INDIFFERENT = 0.02
"""Of plans whose times differ by a smaller share the one that changes least is taken:
the baseline before merged ones, dense ones before lossy ones."""


NEARLY = 0.9
"""Of lossy plans the gentlest is taken that has so much of the best speed-up: a short
training shows how fast a plan is, and less well what it leaves out."""


def fastest(trials: Sequence[Trial]) -> Trial:
    """Return the plan to run by time: the one that changes least among the fastest.

    Only those count that were in the last round.

    Args:
        trials: the baseline first; at least that was measured.
    """
    rounds = max(len(trial.rounds) for trial in trials)
    last = [trial for trial in _measured(trials) if len(trial.rounds) == rounds]
    limit_s = min(_s(trial) for trial in last) * (1 + INDIFFERENT)
    good = [trial for trial in last if _s(trial) <= limit_s]
    if trials[0] in good:
        return trials[0]
    lossless = [trial for trial in good if trial.lossless]
    return min(lossless or good, key=_s)


def by_time(trials: Sequence[Trial], winner: Trial) -> str:
    """Return the advice when iterations shall be short.

    Args:
        trials: the baseline first.
        winner: one of them.
    """
    baseline = trials[0]
    measured = _measured(trials)
    lossy = [trial for trial in measured if not trial.lossless]
    gain = _against(winner, baseline)
    if winner.lossless:
        text = f"use {winner.name}: {gain}, exactly dense"
        if winner is baseline:
            text = (
                f"keep DDP's buckets: no plan is faster by {units.percent(INDIFFERENT)}"
            )
        if not lossy:
            return f"{text}; no lossy plan was tried"
        best = min(lossy, key=_s)
        return f"{text}; do not compress: {best.name} {_compared(best, winner)}"
    dense = min((t for t in measured if t.lossless), key=_s)
    beside = (
        "merging alone gains nothing"
        if _s(dense) > (1 - INDIFFERENT) * _s(baseline)
        else f"the best dense plan, {dense.name}: {_against(dense, baseline)}"
    )
    return (
        f"compress with {winner.name}: {gain}; {beside}; "
        "tune --objective loss says what it does to the loss"
    )


def by_loss(
    trials: Sequence[Trial], control: Trial, speed_ups: Mapping[str, float], seeds: int
) -> tuple[Trial, str]:
    """Return the plan to run, and the advice, when the loss shall fall fast.

    Args:
        trials: the baseline first.
        control: the dense plan that all were held against.
        speed_ups: over the control, of lossy plans, by name, gentler ones later; 0:
            never got there.
        seeds: how many runs each.
    """
    merged = f"the best dense plan, {control.name}: {_against(control, trials[0])}"
    if control.name == trials[0].name:
        merged = "merging alone gains nothing"
    runs = "1 seed" if seeds == 1 else f"median of {seeds} seeds"
    if not speed_ups:
        return control, f"no lossy plan was worth judging; {merged}"
    most = max(speed_ups.values())
    name, best = [item for item in speed_ups.items() if item[1] >= NEARLY * most][-1]
    if best > 1 + INDIFFERENT:
        winner = next(trial for trial in trials if trial.name == name)
        return winner, (
            f"compress with {name}: it gets to the dense plan's loss in "
            f"{units.percent(1 / best)} of its time ({runs}); {merged}"
        )
    if best == 0:
        return control, (
            f"do not compress: no lossy plan got to the dense plan's loss in its time "
            f"({runs}); {merged}"
        )
    return control, (
        f"do not compress: the best lossy plan, {name}, takes {units.times(1 / best)} "
        f"the time of the dense one to its loss ({runs}); {merged}"
    )


def _measured(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.measured_s is not None]


def _s(trial: Trial) -> float:
    assert trial.measured_s is not None
    return trial.measured_s


def _against(trial: Trial, baseline: Trial) -> str:
    gain = 1 - _s(trial) / _s(baseline)
    if gain < 0:
        return f"{units.percent(-gain)} more time than DDP's buckets"
    return f"{units.percent(gain)} less time than DDP's buckets"


def _compared(trial: Trial, other: Trial) -> str:
    share = _s(trial) / _s(other) - 1
    if share >= 0:
        return f"takes {units.percent(share)} longer"
    return f"would save no more than {units.percent(-share)}"
