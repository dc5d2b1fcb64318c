"""The same kind of plan once more, for another number of ranks."""

from __future__ import annotations

from dataclasses import replace

from comm_plan.errors import MismatchError
from comm_plan.planner.documents import make_problem
from comm_plan.planner.problem import Settings
from comm_plan.planner.solvers import find_solver
from comm_plan.planner.summary import solve
from comm_plan.plans.compression import METHODS
from comm_plan.plans.network import Network
from comm_plan.plans.plan import Plan
from comm_plan.plans.profile import Profile


def replan(
    plan: Plan,
    profile: Profile,
    network: Network,
    world_size: int,
    settings: Settings | None = None,
) -> Plan:
    """Return what the solver of ``plan`` makes for ``world_size`` ranks.

    A compressor that was forced upon its buckets is forced upon the new ones.

    Args:
        plan: the plan.
        profile: of its model.
        network: what collectives cost; for another number of ranks they are carried
            over by their closed forms.
        world_size: the new number of ranks.
        settings: what else the plan was solved with.

    Raises:
        MismatchError: the profile is of another model.
        InputError: a cost that is needed was not measured.
    """
    if plan.model.fingerprint != profile.model.fingerprint:
        raise MismatchError(
            f"the plan is for {plan.model.name}, the profile of {profile.model.name}: "
            "give the profile that it was solved from"
        )
    settings = replace(
        settings or Settings(),
        world_size=world_size,
        momentum_correction=plan.momentum_correction,
    )
    if not find_solver(plan.solver).chooses_compression:
        settings = _forced(plan, settings)
    return solve(make_problem(profile, network, settings), plan.solver)


def _forced(plan: Plan, settings: Settings) -> Settings:
    """Return ``settings`` with the compressor of ``plan``'s buckets, if any."""
    bucket = max(plan.buckets, key=lambda bucket: bucket.compressor.ratio)
    spec = bucket.compressor.unfitted()
    if spec.lossless:
        return settings
    names = (
        name
        for name, (example, collective) in METHODS.items()
        if (example.kind, collective) == (spec.kind, bucket.collective)
    )
    return replace(
        settings, compressor=next(names), options=spec.model_dump(exclude={"kind"})
    )
