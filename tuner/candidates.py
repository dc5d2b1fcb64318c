"""Which plans are worth running: those that the model cannot tell from the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from comm_plan import units
from comm_plan.errors import InputError
from comm_plan.planner import SOLVERS, Problem, Settings, make_problem, solve
from comm_plan.plans import Network, Plan, Profile
from comm_plan.plans.compression import METHODS, method
from comm_plan.plans.tuning import Objective

BASELINE = "threshold"
"""What people run without planning: the bucket sizes of PyTorch DDP."""

MERGED = "optimal"
"""The best that merging alone can do; its buckets carry every forced compressor."""

MODEL_ERROR = 0.2
"""A plan may be so much faster, and the best so much slower, than was predicted."""

ALIKE = 2
"""Where the loss decides, so many plans that leave out about as much are tried."""

MOST = 10
"""Plans that are tried at most, the baseline and the merged one among them."""


@dataclass(frozen=True)
class Candidate:
    """A plan by its name: its solver, and the compressor forced upon it, if any."""

    name: str
    plan: Plan

    @property
    def predicted_s(self) -> float:
        """Predicted iteration time."""
        assert self.plan.predicted is not None
        return self.plan.predicted.iteration_s

    @property
    def ratio(self) -> float:
        """How much the bucket that is compressed most leaves out; 1: nothing."""
        return max(bucket.compressor.ratio for bucket in self.plan.buckets)


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
) -> Candidates:
    """Return the plans that could be best, the predicted order kept.

    Every solver makes one, and every method that ``settings.allow`` names (None: all)
    one with the buckets of ``optimal``. The baseline and ``optimal`` are always tried.
    Of equal plans the first in the order of solvers and methods is tried, dense ones
    first. Any other plan is tried only if, were it as much faster than predicted and
    others as much slower as :data:`MODEL_ERROR`, it would be the fastest; where the
    loss decides, the fastest of those that leave out no more than it does.

    Args:
        profile: of the model, with costs of compressors.
        network: of the cluster.
        settings: what is allowed; a forced compressor is not.
        objective: what the best plan is best at.
        most: how many to try at most.

    Raises:
        InputError: ``settings`` force a compressor or allow an unknown one.
    """
    if settings.compressor is not None:
        raise InputError(
            f"compressor {settings.compressor!r} is forced, a tuner chooses: leave it "
            "out, or allow it only"
        )
    listed, not_tried = _all(profile, network, settings)
    always = [c for c in listed if c.name in (BASELINE, MERGED)]
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
            not_tried[candidate.name] = "faster plans leave out about as much"
        elif len(chosen) >= most:
            not_tried[candidate.name] = f"{most} plans were predicted to be as fast"
        else:
            chosen.append(candidate)
    return Candidates(tuple(chosen), not_tried)


def _alike(candidate: Candidate, others: Sequence[Candidate]) -> int:
    """Return how many of ``others`` leave out about as much, within a factor of 2."""
    return sum(1 / 2 < other.ratio / candidate.ratio < 2 for other in others)


def _all(
    profile: Profile, network: Network, settings: Settings
) -> tuple[list[Candidate], dict[str, str]]:
    """Return all distinct plans, the baseline first, and why some are missing."""
    seen: dict[str, str] = {}
    listed: list[Candidate] = []
    missing: dict[str, str] = {}
    for name, problem in _problems(profile, network, settings, missing):
        solver = name if name in SOLVERS else MERGED
        try:
            plan = solve(problem, solver)
        except InputError as error:
            missing[name] = str(error)
            continue
        same = seen.setdefault(repr(plan.buckets), name)
        if same == name:
            listed.append(Candidate(name, plan))
        else:
            missing[name] = f"the same plan as {same}"
    return listed, missing


def _problems(
    profile: Profile,
    network: Network,
    settings: Settings,
    missing: dict[str, str],
) -> Iterator[tuple[str, Problem]]:
    """Yield a plan's name and what to solve for it, the baseline first."""
    problem = make_problem(profile, network, settings)
    allowed = tuple(METHODS) if settings.allow is None else settings.allow
    first = (BASELINE, MERGED)
    for name in (*first, *(name for name in SOLVERS if name not in first)):
        needs = SOLVERS[name].method
        if needs is None or needs in allowed:
            yield name, problem
        else:
            missing[name] = f"{needs} is not allowed"
    for name in allowed:
        spec, _ = method(name)
        if spec.kind == "dense":
            continue
        try:
            yield (
                f"{MERGED}, {name}",
                make_problem(profile, network, replace(settings, compressor=name)),
            )
        except InputError as error:
            missing[f"{MERGED}, {name}"] = str(error)
