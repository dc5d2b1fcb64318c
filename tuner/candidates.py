"""Which plans are worth running: those that the model cannot tell from the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from comm_plan import units
from comm_plan.errors import InputError
from comm_plan.planner import (
    SOLVERS,
    Problem,
    Settings,
    evidence,
    make_problem,
    solve,
)
from comm_plan.planner.evidence import Accuracy
from comm_plan.planner.solvers import CHOOSING, MERGED
from comm_plan.plans import LocalSteps, Network, Plan, Profile
from comm_plan.plans.compression import METHODS, method
from comm_plan.plans.document import refused_as
from comm_plan.plans.plan import TODAY
from comm_plan.plans.tuning import Objective

MODEL_ERROR = 0.2
"""A plan may be so much faster, and the best so much slower, than was predicted."""

ALIKE = 2
"""Where the loss decides, so many plans that leave out about as much are tried."""

MILD_RATIOS = (32.0, 16.0)
"""Where the loss decides, ``auto`` is also asked to leave out no more than that."""

MOST = 16
"""Plans that are tried at most, the baseline and the merged one among them."""


@dataclass(frozen=True)
class Candidate:
    """A plan that could be tried.

    Attributes:
        name: its solver, and the compressor forced upon it, if any.
        plan: with a prediction.
    """

    name: str
    plan: Plan

    @property
    def predicted_s(self) -> float:
        """Predicted iteration time."""
        assert self.plan.predicted is not None
        return self.plan.predicted.iteration_s

    @property
    def ratio(self) -> float:
        """How much the bucket that is compressed most leaves out; 1: nothing.

        Local steps leave out exchanges.
        """
        of_buckets = max(bucket.compressor.ratio for bucket in self.plan.buckets)
        return self.plan.round_steps * of_buckets

    @property
    def local(self) -> bool:
        """Whether its ranks train alone for some steps."""
        return self.plan.local_steps is not None


@dataclass(frozen=True)
class Candidates:
    """What to try, the baseline first, and why other plans are not tried."""

    tried: tuple[Candidate, ...]
    not_tried: dict[str, str]


def candidates(
    profile: Profile,
    network: Network,
    settings: Settings,
    objective: Objective = "time",
    most: int = MOST,
    local_steps: Sequence[int] = (),
) -> Candidates:
    """Return the plans that could be best, the predicted order kept.

    Every solver makes one, and every method that ``settings`` allow, by name or by what
    was measured of its accuracy, one with the buckets of ``optimal``. Where the loss
    decides, ``auto`` makes some with less compression too (:data:`MILD_RATIOS`), and it
    and ``optimal`` one for every length of rounds of local steps. The
    baseline and ``optimal`` are always tried. Of equal plans the first in the order of
    solvers and methods is tried, dense ones first. Any other plan is tried only if,
    were it as much faster than predicted and others as much slower as
    :data:`MODEL_ERROR`, it would be the fastest; where the loss decides, the fastest of
    those that leave out no more than it does.

    Args:
        profile: of the model, with costs of compressors.
        network: of the cluster.
        settings: what is allowed; a forced compressor is not.
        objective: what the best plan is best at.
        most: how many to try at most.
        local_steps: how many of them to try, if the loss decides.

    Raises:
        InputError: ``settings`` force a compressor, or no round has so many steps.
    """
    if settings.compressor is not None:
        raise InputError(
            f"compressor {settings.compressor!r} is forced, a tuner chooses: leave it "
            "out, or allow it only"
        )
    settings = replace(settings, min_gain=0.0)  # it is measured, not predicted
    posed, missing = _posed(profile, network, settings, objective)
    for steps in dict.fromkeys(local_steps) if objective == "loss" else ():
        with refused_as("--local-steps"):
            local = LocalSteps(every=steps)
        try:
            posed += _in_rounds(profile, network, settings, local)
        except InputError as error:
            missing[f"{steps} local steps"] = str(error)
    listed, not_tried = _solved(posed, missing)
    always = [c for c in listed if c.name in (TODAY, MERGED)]
    rest = sorted(
        (c for c in listed if c not in always), key=lambda c: c.predicted_s
    )  # stable: dense ones stay first among equals
    chosen = list(always)
    for candidate in rest:
        rivals = [
            other
            for other in listed
            if objective == "time" or other.ratio <= candidate.ratio
        ]
        best_s = min(other.predicted_s for other in rivals)
        if candidate.predicted_s > best_s * (1 + MODEL_ERROR) / (1 - MODEL_ERROR):
            not_tried[candidate.name] = (
                f"predicted {units.seconds(candidate.predicted_s)}, another plan "
                f"{units.seconds(best_s)}"
            )
        elif objective == "loss" and _alike(candidate, chosen) >= ALIKE:
            not_tried[candidate.name] = (
                f"{ALIKE} plans that leave out about as much are tried"
            )
        elif len(chosen) >= most:
            not_tried[candidate.name] = f"{most} plans were predicted to be as fast"
        else:
            chosen.append(candidate)
    return Candidates(tuple(chosen), not_tried)


def _alike(candidate: Candidate, others: Sequence[Candidate]) -> int:
    """Return how many of ``others`` leave out about as much, within a factor of 2."""
    return sum(1 / 2 < other.ratio / candidate.ratio < 2 for other in others)


@dataclass(frozen=True)
class _Posed:
    """A plan's name, and how it is made."""

    name: str
    solver: str
    problem: Problem


def _solved(
    posed: Sequence[_Posed], missing: dict[str, str]
) -> tuple[list[Candidate], dict[str, str]]:
    """Return all distinct plans, and why some are missing."""
    seen: dict[str, str] = {}
    listed: list[Candidate] = []
    missing = dict(missing)
    for each in posed:
        try:
            plan = solve(each.problem, each.solver)
        except InputError as error:
            missing[each.name] = str(error)
            continue
        does = repr((plan.buckets, plan.local_steps))
        same = seen.setdefault(does, each.name)
        if same == each.name:
            listed.append(Candidate(each.name, plan))
        else:
            missing[each.name] = f"the same plan as {same}"
    return listed, missing


def _in_rounds(
    profile: Profile, network: Network, settings: Settings, local: LocalSteps
) -> list[_Posed]:
    """Return what to solve for such rounds of local steps, dense and compressed.

    Compressed by what is within noise, unless something else is allowed by name: the
    steps have already made the exchanges rare.

    Raises:
        InputError: gradients are sparse.
    """
    gentle: Accuracy = "none" if settings.accuracy == "none" else "noise"
    settings = replace(
        settings, local_steps=local, momentum_correction=False, accuracy=gentle
    )
    problem = make_problem(profile, network, settings)
    return [_Posed(settings.label(name), name, problem) for name in (MERGED, CHOOSING)]


def _posed(
    profile: Profile, network: Network, settings: Settings, objective: Objective
) -> tuple[list[_Posed], dict[str, str]]:
    """Return what to solve for each plan, the baseline first, and what cannot be."""
    problem = make_problem(profile, network, settings)
    first = (TODAY, MERGED)
    posed, missing = [], {}
    for name in (*first, *(name for name in SOLVERS if name not in first)):
        needs = SOLVERS[name].method
        limit = settings.max_ratio if needs is None else settings.ratio_limit(needs)
        if needs is not None and limit <= 1:
            missing[name] = f"{needs} is not allowed"
        elif limit == settings.max_ratio:
            posed.append(_Posed(name, name, problem))
        else:
            gentle = make_problem(profile, network, replace(settings, max_ratio=limit))
            posed.append(_Posed(name, name, gentle))
    for ratio in MILD_RATIOS if objective == "loss" else ():
        if ratio < settings.max_ratio:
            mild = make_problem(profile, network, replace(settings, max_ratio=ratio))
            posed.append(_Posed(f"{CHOOSING}, {ratio:g}x", CHOOSING, mild))
    named = METHODS if settings.allow is None else settings.allow
    for method_name in dict.fromkeys(named):
        spec = problem.prices.expected(method(method_name)[0])
        if spec.lossless:
            continue
        forced = replace(settings, compressor=method_name)
        name = forced.label(MERGED)
        if spec.ratio > settings.max_ratio * evidence.SLACK:
            missing[name] = (
                f"it leaves out {spec.ratio:.4g}x, above --max-ratio "
                f"{settings.max_ratio:g}"
            )
            continue
        if spec.ratio > settings.ratio_limit(method_name) * evidence.SLACK:
            corrected = settings.momentum_correction and spec.sparse
            known = evidence.rests_on(
                method_name, spec.ratio, momentum_correction=corrected
            )
            missing[name] = f"its accuracy is not known to be that of dense: {known}"
            continue
        try:
            posed.append(_Posed(name, MERGED, make_problem(profile, network, forced)))
        except InputError as error:
            missing[name] = str(error)
    return posed, missing
