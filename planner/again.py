"""The same plan once more, at other costs or for another number of ranks."""

from __future__ import annotations

from dataclasses import replace

from comm_plan.errors import MismatchError
from comm_plan.planner.documents import make_problem
from comm_plan.planner.problem import Settings
from comm_plan.planner.summary import solve
from comm_plan.plans.network import Network
from comm_plan.plans.plan import Plan
from comm_plan.plans.profile import Profile


def replan(plan: Plan, profile: Profile, network: Network, world_size: int) -> Plan:
    """Return what the solver of ``plan``, asked for the same, makes of these costs.

    Args:
        plan: the plan.
        profile: of its model.
        network: what collectives cost; for another number of ranks they are carried
            over by their closed forms.
        world_size: the number of ranks.

    Raises:
        MismatchError: the profile is of another model.
        InputError: a cost that is needed was not measured.
    """
    if plan.model.fingerprint != profile.model.fingerprint:
        raise MismatchError(
            f"the plan is for {plan.model.name}, the profile of {profile.model.name}: "
            "give the profile that it was solved from"
        )
    settings = replace(Settings.of(plan), world_size=world_size)
    return solve(make_problem(profile, network, settings), plan.solver)
