"""The plan of a command line, for the ranks that are here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from comm_plan import screen, units
from comm_plan.commands import arguments, launching
from comm_plan.errors import InputError
from comm_plan.plans.compression.spec import RESIDUAL
from comm_plan.transports.ranks import place

if TYPE_CHECKING:
    from comm_plan.commands.options import Ranks
    from comm_plan.plans import Plan
    from comm_plan.runtime.density_warmup import DensityWarmup
    from comm_plan.workloads.base import Workload


def refuse_warmup(warmup: DensityWarmup, plans: Iterable[Plan]) -> None:
    """Refuse a warm-up of densities where it would decide nothing.

    Raises:
        InputError: one is asked for, but no plan sends a given share of the elements.
    """
    specs = (bucket.compressor for plan in plans for bucket in plan.buckets)
    if warmup and not any("density" in type(spec).model_fields for spec in specs):
        raise InputError("--density-warmup: the plan has no densities")


def refuse_diagnostics(plan: Plan) -> None:
    """Refuse to measure residuals where there are none.

    Raises:
        InputError: no compressor of the plan keeps any.
    """
    if not any(RESIDUAL in bucket.compressor.state for bucket in plan.buckets):
        raise InputError("--diagnostics: no gradient waits in a residual by this plan")


def plan_for_these(
    path: Path, plan: Plan, ranks: Ranks, elastic: tuple[Path, Path] | None = None
) -> Plan:
    """Return the plan, solved again if it may be and is for another number of ranks.

    What is not as the plan has it is said by rank 0.
    """
    from comm_plan.planner import replan
    from comm_plan.plans import Network, Profile
    from comm_plan.plans.link import link_text

    here, said = place(), []
    if elastic is not None and here.world_size != plan.world_size:
        said.append(
            f"solved again for {units.counted(here.world_size, 'rank')}: the plan is "
            f"for {plan.world_size}"
        )
        documents = Profile.load(elastic[0]), Network.load(elastic[1])
        plan = replan(plan, *documents, here.world_size)
    for planned, now in (
        (plan.backend, arguments.value(ranks.backend)),
        (link_text(plan.emulated_link), link_text(launching.link_of(ranks))),
    ):
        if planned != now:
            said.append(_differs(path, planned, f"this run is on {now}"))
    for line in said if here.rank == 0 else ():
        screen.say(line)
    return plan


def compare_conditions(path: Path, plan: Plan, workload: Workload) -> None:
    """Say, on rank 0, what differs from how the plan's profile was measured."""
    import torch

    if plan.inputs is None or place().rank:
        return
    for planned, now, what in (
        (plan.inputs.batch_size, workload.batch_size, "sample"),
        (plan.inputs.threads, torch.get_num_threads(), "thread"),
    ):
        if planned is not None and planned != now:
            each = f"{units.counted(planned, what)} a rank"
            screen.say(_differs(path, each, f"here are {now}"))


def _differs(path: Path, planned: str | None, now: str) -> str:
    return f"{path} is for {planned}, {now}: its predictions are for the former"
