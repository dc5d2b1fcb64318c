"""What it all means, in one sentence, as carefully as the documents allow."""

from __future__ import annotations

from collections.abc import Iterator

from comm_plan import units
from comm_plan.plans.link import link_text
from comm_plan.plans.plan import TODAY, WORTHWHILE
from comm_plan.report.page.given import Forecast, Given
from comm_plan.report.page.subject import (
    Subject,
    fastest_run,
    find_subject,
)
from comm_plan.report.spread import overlap


def verdict(given: Given) -> str:
    """Return a tuning's advice, else what runs, a plan or the planner say."""
    if given.tuning is not None:
        return given.tuning.advice
    subject = find_subject(given)
    if subject and (subject.run or subject.plan):
        return _held_against(subject)
    return _predicted(given.forecast) if given.forecast else _alone(given)


def remarks(given: Given) -> Iterator[str]:
    """Yield what must be known beside the verdict."""
    run, subject = fastest_run(given), find_subject(given)
    if run and given.tuning:
        yield f"Of the runs: {_held_against(run)}."
    elif subject and (run or subject.plan) and given.forecast and not given.tuning:
        comparison = given.forecast.comparison
        solvers = ", ".join(row.label for row in comparison.rows)
        ranks = _ranks(comparison.world_size)
        yield f"Of {solvers} on {ranks} it is {_predicted(given.forecast)}."
    if run is not None:
        yield from _noise(run)
    yield from _other_algorithms(given)
    yield from _other_links(given)
    yield from _extrapolated(given)
    if given.tuning and not given.tuning.complete:
        yield "The trials ended early: not every plan had its turn."


def _other_algorithms(given: Given) -> Iterator[str]:
    for shown in given.plans:
        if shown.plan.local_steps is not None:
            yield (
                f"By {shown.name} the ranks train alone between their exchanges: that "
                "is another algorithm, hold its loss against that of the others."
            )


def _other_links(given: Given) -> Iterator[str]:
    for ran in given.runs:
        if ran.plan is None:
            continue
        planned, link = ran.plan.plan.emulated_link, ran.record.emulated_link
        if planned != link:
            yield (
                f"{ran.name} ran on {link_text(link)}, its plan was predicted for "
                f"{link_text(planned)}: do not compare the two."
            )


def _extrapolated(given: Given) -> Iterator[str]:
    for shown in given.plans:
        predicted = shown.plan.predicted
        if predicted and predicted.extrapolated_from:
            yield (
                f"The prediction of {shown.name} for {_ranks(shown.plan.world_size)} "
                f"is extrapolated from {predicted.extrapolated_from}."
            )
    forecast = given.forecast and given.forecast.comparison
    if forecast and forecast.extrapolated_from:
        yield (
            f"The solvers' predictions for {_ranks(forecast.world_size)} are "
            f"extrapolated from {forecast.extrapolated_from}."
        )


def _predicted(forecast: Forecast) -> str:
    return f"predicted: {forecast.comparison.verdict}"


def _held_against(subject: Subject) -> str:
    """Return what the subject's plan brings over its baseline, and if it kept time."""
    text = _gain(subject)
    measured_s, predicted_s = subject.measured_s, subject.predicted_s
    if measured_s and predicted_s:
        over = measured_s / predicted_s
        text += (
            f"; measured {units.seconds(measured_s)} an iteration, {units.times(over)} "
            f"the predicted {units.seconds(predicted_s)}"
        )
    return text


def _gain(subject: Subject) -> str:
    how = "measured" if subject.baseline_measured else "predicted"
    if subject.is_baseline and subject.name != subject.baseline:
        return (
            f"nothing is gained: {subject.name} has the same buckets as "
            f"{subject.baseline}, any difference in time is noise"
        )
    if subject.is_baseline and subject.baseline_s is not None:
        behind = ""
        if subject.behind is not None and subject.baseline_s:
            name, seconds = subject.behind
            behind = f"; {name} takes {units.times(seconds / subject.baseline_s)} that"
        return (
            f"nothing is gained: no plan is faster than {subject.baseline} "
            f"({units.seconds(subject.baseline_s)}, {how}){behind}"
        )
    if subject.speedup is None or subject.baseline_s is None:
        own_s = subject.measured_s or subject.predicted_s or 0.0
        how, missing = "predicted", f"a plan of solver {TODAY}"
        if subject.measured_s:
            how, missing = "measured", f"a run by DDP, or by {missing},"
        return (
            f"{subject.name} takes {units.seconds(own_s)} an iteration, {how}; give "
            f"{missing} as well to see what it gains"
        )
    baseline = f"{subject.baseline} ({units.seconds(subject.baseline_s)}, {how})"
    gain = 1 - 1 / subject.speedup
    if gain < -WORTHWHILE:
        times = units.times(1 / subject.speedup)
        return f"{subject.name} loses: it takes {times} the time of {baseline}"
    if gain <= WORTHWHILE:
        return f"nothing is gained: {subject.name} takes about the time of {baseline}"
    return f"{subject.name} takes {units.percent(gain)} less time than {baseline}"


def _noise(subject: Subject) -> Iterator[str]:
    """Yield that the iterations of two runs overlap, if they do."""
    run, baseline = subject.run, subject.baseline_run
    if run is None or baseline is None or subject.is_baseline:
        return
    if spans := overlap(run.record, baseline.record):
        own, other = (_span(*span) for span in spans)
        yield (
            f"The middle halves of the iterations overlap, {own} and {other}: the "
            "difference between the runs may be noise."
        )


def _span(low_s: float, high_s: float) -> str:
    return f"{units.seconds(low_s)} to {units.seconds(high_s)}"


def _ranks(world_size: int) -> str:
    return units.counted(world_size, "rank")


def _alone(given: Given) -> str:
    """Return what little there is to say of documents that predict nothing."""
    if given.no_forecast:
        return f"nothing is predicted: {given.no_forecast}"
    if given.profile is not None:
        profile = given.profile
        compute_s = profile.forward_s + profile.backward_s + profile.update_s
        return (
            f"{profile.model.name} computes {units.seconds(compute_s)} an iteration "
            f"for {units.nbytes(profile.nbytes)} of gradients; give a network document "
            "as well to see what communication adds"
        )
    if given.network is not None:
        return (
            f"collectives of {_ranks(given.network.world_size)} by "
            f"{given.network.backend}; give a profile as well to see what they cost an "
            "iteration"
        )
    if given.runs:
        return "no run has measured an iteration"
    return "these documents neither predict nor measure an iteration"
