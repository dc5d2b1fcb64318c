"""What to run, and in one sentence why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

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

    Beside the baseline only those count that were in the most rounds.

    Args:
        trials: the baseline first; at least that was measured.
    """
    baseline, *others = _measured(trials)
    rounds = max((len(trial.rounds) for trial in others), default=0)
    last = [baseline, *(trial for trial in others if len(trial.rounds) == rounds)]
    limit_s = min(_s(trial) for trial in last) * (1 + INDIFFERENT)
    good = [trial for trial in last if _s(trial) <= limit_s]
    if baseline in good:
        return baseline
    lossless = [trial for trial in good if trial.lossless]
    return min(lossless or good, key=_s)


def by_time(trials: Sequence[Trial], winner: Trial) -> str:
    """Return the advice when iterations shall be short.

    Args:
        trials: the baseline first.
        winner: one of them.
    """
    lossy = [trial for trial in trials if not trial.lossless]
    if not winner.lossless:
        merged = _merged(best_dense(trials), trials)
        return (
            f"compress with {winner.name}: {_against(winner, trials[0])}; {merged}; "
            "tune --objective loss says what it does to the loss"
        )
    text = _use(winner, trials, "plan")
    if _is_alone(trials):
        return text
    if not _measured(lossy):
        return f"{text}; no lossy plan was {'measured' if lossy else 'tried'}"
    best = min(_measured(lossy), key=lambda trial: (-len(trial.rounds), _s(trial)))
    return f"{text}; do not compress: {best.name} {_compared(best, winner)}"


def without_loss(trials: Sequence[Trial], why: str) -> tuple[Trial, str]:
    """Return the dense plan to run, and the advice, where the loss has not decided.

    Args:
        trials: the baseline first; at least that was measured.
        why: what keeps lossy plans from being judged.
    """
    winner = best_dense(trials)
    return winner, f"{_use(winner, trials, 'dense plan')}; {why}"


def best_dense(trials: Sequence[Trial]) -> Trial:
    """Return the dense plan that lossy ones are held against.

    Args:
        trials: the baseline first; at least that was measured.
    """
    return fastest([trial for trial in trials if trial.lossless])


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
    merged = _merged(control, trials)
    runs = "1 seed" if seeds == 1 else f"median of {seeds} seeds"
    curves = [c for trial in trials if trial.name == control.name for c in trial.curves]
    longest_s = max((s for curve in curves for s in curve.seconds), default=0.0)
    if longest_s:
        runs += f", {units.seconds(longest_s)} of training each"
    if not speed_ups:
        return control, f"no lossy plan was {_lacking(trials)}; {merged}"
    better = {name: s for name, s in speed_ups.items() if s > 1 + INDIFFERENT}
    if better:
        enough = NEARLY * max(better.values())
        name, best = [item for item in better.items() if item[1] >= enough][-1]
        winner = next(trial for trial in trials if trial.name == name)
        how = "train by" if winner.local else "compress with"
        return winner, (
            f"{how} {name}: it gets to the dense plan's loss in at most "
            f"{units.percent(1 / best)} of its time ({runs}); {merged}"
        )
    name, best = max(speed_ups.items(), key=itemgetter(1))
    if best == 0:
        return control, (
            f"do not compress: no lossy plan got to the dense plan's loss in its time "
            f"({runs}); {merged}"
        )
    takes = f"takes up to {units.times(1 / best)}"
    if best > 1:
        takes = f"may save no more than {units.percent(1 - 1 / best)} of"
    return control, (
        f"do not compress: the best lossy plan, {name}, {takes} the time of the dense "
        f"one to its loss ({runs}); {merged}"
    )


def _measured(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.measured_s is not None]


def _s(trial: Trial) -> float:
    assert trial.measured_s is not None
    return trial.measured_s


def _is_alone(trials: Sequence[Trial]) -> bool:
    """Return whether only the first of several was measured."""
    return len(_measured(trials)) == 1 < len(trials)


def _lacking(trials: Sequence[Trial]) -> str:
    """Return what no lossy plan was, where none was judged by loss."""
    lossy = [trial for trial in trials if not trial.lossless]
    return "measured" if lossy and not _measured(lossy) else "worth judging"


def _use(winner: Trial, trials: Sequence[Trial], what: str) -> str:
    """Return what to do by ``winner``, a dense plan.

    Args:
        winner: the plan to run.
        trials: the baseline first.
        what: which plans it was chosen from.
    """
    if winner.name != trials[0].name:
        return f"use {winner.name}: {_against(winner, trials[0])}, exactly dense"
    if _is_alone(trials):
        return "keep DDP's buckets: nothing else was measured"
    least = units.percent(INDIFFERENT)
    return f"keep DDP's buckets: no {what} is {least} faster or more"


def _merged(dense: Trial, trials: Sequence[Trial]) -> str:
    """Return what ``dense``, the best dense plan, gains over the baseline."""
    others = [trial for trial in trials[1:] if trial.lossless]
    if dense.name != trials[0].name:
        gain = _against(dense, trials[0])
        return f"the best dense plan, {dense.name}: {gain}"
    if others and not _measured(others):
        return "no other dense plan was measured"
    return "merging alone gains nothing"


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
