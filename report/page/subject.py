"""Which of all plans and runs the top of the page is about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from comm_plan.plans.plan import TODAY, WORTHWHILE
from comm_plan.plans.run import STOCK_DDP
from comm_plan.report.page.given import Given, ShownPlan, ShownRun


@dataclass(frozen=True)
class Subject:
    """The plan that counts, as far as it is known, and what it is held against.

    Attributes:
        name: the plan's.
        predicted_s: iteration time, predicted.
        measured_s: iteration time, measured.
        baseline: name of the plan that it is held against; empty: there is none.
        baseline_s: iteration time by that plan.
        baseline_measured: whether ``baseline_s`` was measured; else it is to be held
            against ``predicted_s``.
        plan: the plan itself.
        run: a run by it.
        baseline_run: the run that it is held against.
        behind: the next fastest of the plans or runs beside it, and its time.
    """

    name: str
    predicted_s: float | None = None
    measured_s: float | None = None
    baseline: str = ""
    baseline_s: float | None = None
    baseline_measured: bool = False
    plan: ShownPlan | None = None
    run: ShownRun | None = None
    baseline_run: ShownRun | None = None
    behind: tuple[str, float] | None = None

    @property
    def is_baseline(self) -> bool:
        """Whether it is what it is held against, or has the same buckets as often."""
        runs = self.run, self.baseline_run
        plans = [run.plan.plan for run in runs if run and run.plan]
        sent = [(plan.buckets, plan.local_steps) for plan in plans]
        same = len(sent) == 2 and sent[0] == sent[1]
        return same or self.name == self.baseline

    @property
    def speedup(self) -> float | None:
        """How many times as fast as the baseline it is, like against like."""
        if self.is_baseline:
            return None
        own_s = self.measured_s if self.baseline_measured else self.predicted_s
        return self.baseline_s / own_s if self.baseline_s and own_s else None


def find_subject(given: Given) -> Subject | None:
    """Return the tuning's winner; else the fastest of runs, of plans, of solvers.

    Of runs and plans see :func:`fastest_run`: only those for the same ranks, backend
    and link are held against each other. Of solvers that are about as fast it is the
    one that compresses and sends least.
    """
    return _winner(given) or fastest_run(given) or _planned(given) or _solved(given)


def _winner(given: Given) -> Subject | None:
    tuning = given.tuning
    if tuning is None:
        return None
    winner, baseline = tuning.trial(tuning.winner), tuning.trials[0]
    measured = None not in (winner.measured_s, baseline.measured_s)
    plans = [shown for shown in given.plans if shown.trial is winner]
    runs = [run for run in given.runs if run.plan and run.plan.trial is winner]
    plan = runs[0].plan if runs else next(iter(plans), None)
    return Subject(
        winner.name,
        winner.predicted_s,
        winner.measured_s,
        baseline.name,
        baseline.measured_s if measured else baseline.predicted_s,
        measured,
        plan,
        next(iter(runs), None),
    )


def fastest_run(given: Given) -> Subject | None:
    """Return the fastest of the runs under the conditions that most of them share.

    It is held against the fastest run under the same conditions by stock DDP, or else
    by a plan of its buckets, or else against a prediction.
    """
    timed = [run for run in given.runs if run.record.iteration.count]
    if not timed:
        return None
    sharing = Counter(run.record.conditions for run in timed)
    fastest = min(
        timed, key=lambda run: (-sharing[run.record.conditions], _median_s(run))
    )
    alike = [run for run in timed if run.record.conditions == fastest.record.conditions]
    today = min(
        (run for run in alike if run.record.solver in (STOCK_DDP, TODAY)),
        key=lambda run: (run.record.solver != STOCK_DDP, _median_s(run)),
        default=None,
    )
    predicted_s = fastest.record.predicted_iteration_s
    others = [(r.name, _median_s(r)) for r in alike if r is not fastest]
    baseline, baseline_s = "", None
    if today is not None:
        baseline, baseline_s = today.name, _median_s(today)
    elif fastest.plan:
        baseline, baseline_s = _predicted_baseline(fastest.plan)
    return Subject(
        fastest.name,
        predicted_s,
        _median_s(fastest),
        baseline,
        baseline_s,
        today is not None,
        fastest.plan,
        fastest,
        today,
        _fastest(others),
    )


def _fastest(times: Sequence[tuple[str, float]]) -> tuple[str, float] | None:
    return min(times, key=lambda each: each[1], default=None)


def _median_s(run: ShownRun) -> float:
    return run.record.iteration.median_s


def _planned(given: Given) -> Subject | None:
    """Return the fastest of the plans for the conditions that most of them share."""
    foretold = [
        (shown.plan.predicted.iteration_s, shown.plan.conditions, shown)
        for shown in given.plans
        if shown.plan.predicted
    ]
    if not foretold:
        return None
    sharing = Counter(conditions for _, conditions, _ in foretold)
    time_s, conditions, shown = min(
        foretold, key=lambda each: (-sharing[each[1]], each[0])
    )
    others = [
        (other, seconds)
        for seconds, alike, other in foretold
        if alike == conditions and other is not shown
    ]
    baseline, baseline_s = _predicted_baseline(shown)
    today = [(o.name, seconds) for o, seconds in others if o.plan.label == TODAY]
    if baseline_s is None and today:
        baseline, baseline_s = today[0]
    return Subject(
        shown.name,
        time_s,
        baseline=baseline,
        baseline_s=baseline_s,
        plan=shown,
        behind=_fastest([(other.name, seconds) for other, seconds in others]),
    )


def _predicted_baseline(shown: ShownPlan) -> tuple[str, float | None]:
    predicted = shown.plan.predicted
    if predicted is None:
        return "", None
    if shown.plan.label == TODAY:
        return TODAY, predicted.iteration_s
    baseline_s = predicted.baselines.get(TODAY)
    return (TODAY, baseline_s) if baseline_s is not None else ("", None)


def _solved(given: Given) -> Subject | None:
    if given.forecast is None:
        return None
    rows = given.forecast.comparison.rows
    today = next((row for row in rows if row.label == TODAY), None)
    fastest_s = min(row.iteration_s for row in rows)
    near = [row for row in rows if row.iteration_s <= (1 + WORTHWHILE) * fastest_s]
    best = min(near, key=lambda row: (row.largest_ratio, row.buckets))
    return Subject(
        best.label,
        best.iteration_s,
        None,
        TODAY if today else "",
        None if today is None else today.iteration_s,
    )
