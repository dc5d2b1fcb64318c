"""The key figures at the top of the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from comm_plan import units
from comm_plan.collectives.bandwidth import busbw
from comm_plan.plans import Network, Profile, RunRecord
from comm_plan.report.page.given import Given
from comm_plan.report.page.sizes import BucketSize, step_sizes
from comm_plan.report.page.subject import Subject, find_subject


@dataclass(frozen=True)
class Card:
    """A key figure: its name, its value, and what else to say."""

    name: str
    value: str
    note: str = ""


def cards(given: Given) -> Iterator[Card]:
    """Yield the figures that there are."""
    subject = find_subject(given)
    if subject is not None:
        yield from _times(subject)
        yield from _sent(given, subject)
        if subject.run is not None:
            yield from _quality(subject.run.record)
    elif given.profile is not None:
        yield from _profile(given.profile)
    elif given.network is not None:
        yield from _network(given.network)


def _times(subject: Subject) -> Iterator[Card]:
    if subject.predicted_s is not None:
        predicted = units.seconds(subject.predicted_s)
        yield Card("iteration, predicted", predicted, subject.name)
    if subject.measured_s is not None:
        measured = units.seconds(subject.measured_s)
        yield Card("iteration, measured", measured, subject.name)
    if subject.speedup is not None:
        how = "measured" if subject.baseline_measured else "predicted"
        against = f"against {subject.baseline}, {how}"
        yield Card("speed-up", units.times(subject.speedup), against)


def _sent(given: Given, subject: Subject) -> Iterator[Card]:
    traffic = subject.run and subject.run.record.traffic
    if traffic:
        size, how = BucketSize(traffic.dense_nbytes, traffic.message_nbytes), ""
    elif subject.plan and (sizes := step_sizes(subject.plan.plan, given.profile)):
        dense = sum(size.dense for size in sizes)
        size, how = BucketSize(dense, sum(size.message for size in sizes)), ", planned"
    else:
        return
    note = "the gradients as they are"
    if size.dense != size.message:
        less = f", {units.times(size.ratio)} less" if size.ratio else ""
        note = f"for {units.nbytes(size.dense)} of gradients{less}"
    yield Card("sent per step and rank", units.nbytes(size.message), note + how)


def _quality(record: RunRecord) -> Iterator[Card]:
    last = {evaluation.metric: evaluation for evaluation in record.evaluations}
    for metric, evaluation in last.items():
        value = f"{evaluation.value:.4g}"
        if metric == "accuracy" and evaluation.value <= 1:  # else it is in percent
            value = units.percent(evaluation.value)
        yield Card(metric, value, f"held out, after step {evaluation.step}")
    if not last and record.final_loss is not None:
        yield Card("training loss", f"{record.final_loss:.4g}", "of the last step")


def _profile(profile: Profile) -> Iterator[Card]:
    tensors = units.counted(len(profile.tensors), "tensor")
    yield Card("forward", units.seconds(profile.forward_s))
    yield Card("backward", units.seconds(profile.backward_s))
    yield Card("update", units.seconds(profile.update_s))
    yield Card("gradients", units.nbytes(profile.nbytes), tensors)


def _network(network: Network) -> Iterator[Card]:
    yield Card("ranks", str(network.world_size), network.backend)
    for name, cost in network.collectives.items():
        rates = (
            busbw(name, network.world_size, sample.nbytes, sample.median_s)
            for sample in cost.samples
        )
        best = max((rate for rate in rates if rate), default=None)
        if best is not None:
            yield Card(name, f"{units.nbytes(best)}/s", "best bus bandwidth")
