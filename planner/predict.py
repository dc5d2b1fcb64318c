"""What a plan that exists would take at other costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from comm_plan.errors import MismatchError
from comm_plan.planner.documents import make_problem, to_plan
from comm_plan.planner.option import Option
from comm_plan.planner.problem import Problem, Settings, Solution
from comm_plan.planner.summary import summarise
from comm_plan.plans.compression import Spec
from comm_plan.plans.network import Network
from comm_plan.plans.plan import Plan
from comm_plan.plans.profile import Profile


def predict(
    plan: Plan,
    profile: Profile,
    network: Network,
    settings: Settings | None = None,
    beside: Sequence[str] = (),
) -> Plan:
    """Return ``plan`` with the prediction that these costs make for it.

    Momentum is corrected, and steps are local, as the plan says, whatever was asked.

    Args:
        plan: its buckets hold the profile's tensors in the same order.
        profile: of the model.
        network: of the ranks.
        settings: world size and closed form, if not as measured, and the link speed of
            the lower bound.
        beside: the solvers whose dense plans are its baselines.

    Raises:
        MismatchError: the plan's tensors are not the profile's, in this order.
        InputError: a cost that is needed was not measured.
    """
    problem, solution = posed(plan, profile, network, settings)
    schedule = problem.simulate(solution)
    others = summarise(problem, beside=beside)
    baselines = {row.solver: row.iteration_s for row in others.rows}
    bound_s = others.lower_bound_s
    again = to_plan(problem, plan.solver, solution, schedule, baselines, bound_s)
    return again.model_copy(update={"asked": plan.asked})


def posed(
    plan: Plan, profile: Profile, network: Network, settings: Settings | None = None
) -> tuple[Problem, Solution]:
    """Return the problem at these costs, and the plan's buckets in it, priced.

    Args and errors are those of :func:`predict`.
    """
    asked = replace(
        settings or Settings(),
        momentum_correction=plan.momentum_correction,
        local_steps=plan.local_steps,
    )
    problem = make_problem(profile, network, asked)
    names = [tensor.name for tensor in problem.prices.profile.tensors]
    planned = [name for bucket in plan.buckets for name in bucket.tensors]
    if names != planned:
        raise MismatchError(
            f"the plan is for {len(planned)} tensors from {planned[0]} to "
            f"{planned[-1]}, the profile has {len(names)} from {names[0]} to "
            f"{names[-1]}, or in another order: solve with this profile"
        )
    priced: dict[tuple[Spec, str], Option] = {}
    options: list[Option] = []
    stops: list[int] = []
    start = 0
    for bucket in plan.buckets:
        spec = bucket.compressor.placed(start, len(names))
        how = spec, bucket.collective
        if how not in priced:
            priced[how] = problem.prices.option(*how)
        options.append(priced[how])
        start += len(bucket.tensors)
        stops.append(start)
    return problem, Solution(np.array(stops), tuple(options))
