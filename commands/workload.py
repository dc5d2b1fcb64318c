"""The workload that a command line means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comm_plan.commands import arguments
from comm_plan.commands.options import OptimizerChanges, WorkloadOptions
from comm_plan.workloads.registry import REPLAY

if TYPE_CHECKING:
    from comm_plan.workloads import Workload


def load_workload(
    workload: str,
    changes: WorkloadOptions,
    optimizer: OptimizerChanges,
    seed: int = 0,
) -> Workload:
    """Return the workload that is meant, its own in all that nobody changes."""
    from comm_plan.workloads import load
    from comm_plan.workloads.optimizer import OptimizerOptions, with_optimizer

    given = {name: value for name, value in vars(changes).items() if value is not None}
    other = {**vars(optimizer), "optimizer": arguments.value(optimizer.optimizer)}
    return with_optimizer(load(workload, seed=seed, **given), OptimizerOptions(**other))


def files_of(workload: str) -> list[str]:
    """Return the file that a workload is read from, if there is one."""
    if workload.startswith(REPLAY):
        return [workload.removeprefix(REPLAY)]
    place, colon, _ = workload.rpartition(":")
    return [place] if colon else []
