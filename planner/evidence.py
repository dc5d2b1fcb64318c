"""What methods do to accuracy: what was measured, and what follows for ``auto``.

``accuracy.json`` beside this module is written by ``benchmarks.accuracy table`` from
trainings of equal length beside dense. A method is *within noise* at a ratio if on
every task its mean was within the range of dense over the seeds, or no worse than the
mean of dense by 0.3 points of accuracy or 0.02 nats of loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import TypeAdapter

from comm_plan import units
from comm_plan.plans.compression import Spec
from comm_plan.plans.document import Value

if TYPE_CHECKING:
    from comm_plan.planner.option import Option

Accuracy = Literal["none", "noise", "loss"]
"""What may be lost: nothing; nothing that could be told from noise; something."""

SLACK = 1 + 1e-9
"""Ratios and sums are no exact numbers; one that is higher by less is not higher."""


class Task(Value):
    """What a method did in one task.

    Attributes:
        name: of the workload.
        metric: what was compared, on held-out data.
        steps: of each training.
        seeds: trainings of the method and of dense.
        difference: from the mean of dense; positive: a higher metric.
        within_noise: see the module.
        ratio: dense bytes over the bytes that were sent.
    """

    name: str
    metric: str
    steps: int
    seeds: int
    difference: float
    within_noise: bool
    ratio: float


class Evidence(Value):
    """What a method did at one ratio.

    Attributes:
        method: one of ``METHODS``.
        ratio: of its spec; a plan that leaves out no more rests on it.
        remedies: what was done besides; empty: nothing.
        tasks: what came of it.
    """

    method: str
    ratio: float
    remedies: str = ""
    tasks: tuple[Task, ...]

    @property
    def within_noise(self) -> bool:
        """Whether it could not be told from dense in any task."""
        return all(task.within_noise for task in self.tasks)


@cache
def measured() -> tuple[Evidence, ...]:
    """Return all evidence there is."""
    text = Path(__file__).with_name("accuracy.json").read_bytes()
    return TypeAdapter(tuple[Evidence, ...]).validate_json(text)


def largest_ratio(method: str, accuracy: Accuracy, max_ratio: float) -> float:
    """Return how much ``method`` may leave out; 1: it may not be used.

    What was not tried in every task there is evidence of is not known to be harmless,
    nor is what went well only with remedies, which a plan does not bring along. Above
    a ratio that was not within noise nothing counts as harmless: what went well there
    may have been luck.

    Args:
        method: one of ``METHODS``.
        accuracy: what may be lost.
        max_ratio: no more than that in any case.
    """
    if accuracy == "none":
        return 1.0
    if accuracy == "loss":
        return max_ratio
    every = _tasks()
    plain = [found for found in _known(method) if not found.remedies]
    within = (
        found.ratio
        for found in takewhile(lambda found: found.within_noise, plain)
        if every == {task.name for task in found.tasks}
    )
    return min(max_ratio, max(within, default=1.0))


def of(
    options: Iterable[Option], *, momentum_correction: bool = False
) -> tuple[str, ...]:
    """Return a sentence on each method that ``options`` leave something out by.

    Args:
        options: of a plan.
        momentum_correction: whether the plan corrects the momentum of sparse methods.
    """
    ratios: dict[tuple[str, bool], float] = {}
    for option in options:
        if not option.compressor.lossless:
            name = method_name(option.compressor, option.collective)
            key = name, momentum_correction and option.compressor.sparse
            ratio = trained_ratio(option.compressor, option.ratio)
            ratios[key] = max(ratio, ratios.get(key, 1.0))
    return tuple(
        rests_on(name, ratio, momentum_correction=corrected)
        for (name, corrected), ratio in ratios.items()
    )


def trained_ratio(spec: Spec, ratio: float) -> float:
    """Return by which ratio trainings by ``spec`` are known: its own ``ratio``.

    Where the data decide how much is sent, it is that of the default options, and not
    what was expected of one model.
    """
    return spec.example().ratio if spec.variable_length else ratio


def of_local_steps(steps: int) -> tuple[str, ...]:
    """Return a sentence on training alone for so many steps; empty: for one."""
    if steps == 1:
        return ()
    return (
        f"local steps: every rank trains alone for {steps} steps, which is another "
        "algorithm: whether it gets as far depends on the task",
    )


def rests_on(method: str, ratio: float, *, momentum_correction: bool = False) -> str:
    """Return in a sentence what is known of ``method`` at ``ratio``.

    The gentlest trainings that left out as much, without remedies where there are any;
    where they were within noise but gentler ones were not, those too. Where none left
    out as much, those that left out the most. Without remedies the optimizer applied
    the momentum: a plan with ``momentum_correction`` says so.
    """
    known = _known(method)
    covering = [found for found in known if found.ratio * SLACK >= ratio]
    if covering:
        nearest = min(covering, key=lambda found: bool(found.remedies))
        told = [f"{method} up to {_verdict(nearest)}"]
        if nearest.within_noise:
            lost = [e for e in known if not (e.within_noise or e.remedies)]
            gentler = [found for found in lost if found.ratio < nearest.ratio]
            told += [f"at {_verdict(found)}" for found in gentler]
        corrected = momentum_correction and not nearest.remedies
        other = ". Momentum was not corrected there, as it is here" * corrected
        return "; but ".join(told) + other
    if known:
        most = [found for found in known if found.ratio == known[-1].ratio]
        told_of = min(most, key=lambda found: bool(found.remedies))
        return f"{method} at {_times(ratio)}: not measured; at {_verdict(told_of)}"
    return f"{method}: its accuracy was not measured"


def _tasks() -> set[str]:
    """Return every task that there is evidence of."""
    return {task.name for found in measured() for task in found.tasks}


def _known(method: str) -> list[Evidence]:
    """Return the evidence of ``method``, the gentlest and the worst first."""
    known = [found for found in measured() if found.method == method]
    return sorted(known, key=lambda e: (e.ratio, e.within_noise, e.remedies))


def _verdict(evidence: Evidence) -> str:
    worse = [task.name for task in evidence.tasks if not task.within_noise]
    untried = sorted(_tasks() - {task.name for task in evidence.tasks})
    verdict = f"beyond noise on {' and '.join(worse)}" if worse else "within noise"
    if untried:
        verdict += f", not tried on {' and '.join(untried)}"
    remedies = evidence.remedies and f", with {evidence.remedies}"
    return f"{_times(evidence.ratio)}{remedies}: {_told(evidence)}; {verdict}"


def method_name(spec: Spec, collective: str) -> str:
    """Return what users call ``spec`` by ``collective``."""
    names = (name for name, how in spec.methods.items() if how == collective)
    return next(names, spec.kind)


def _told(evidence: Evidence) -> str:
    return ", ".join(_sentences(evidence))


def _sentences(evidence: Evidence) -> Iterator[str]:
    for task in evidence.tasks:
        if task.metric == "accuracy":
            change = f"{100 * task.difference:+.2f} points of accuracy"
        else:
            change = f"{task.metric} {task.difference:+.3f}"
        seeds = units.counted(task.seeds, "seed")
        yield f"{change} on {task.name} ({task.steps} steps, {seeds})"


def _times(ratio: float) -> str:
    return f"{float(f'{ratio:.3g}'):g}x"
