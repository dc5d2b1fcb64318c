"""Which rank this process is, as its launcher says in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from comm_plan.errors import InputError

_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}


@dataclass(frozen=True)
class Place:
    """A process's place in a run: its rank and who started it."""

    rank: int
    world_size: int
    local_rank: int
    launcher: str  # "torchrun", "mpirun", "mpiexec", "srun" or "none"


def place(environment: Mapping[str, str] | None = None) -> Place:
    """Return this process's place, ``Place(0, 1, 0, "none")`` without a launcher.

    Args:
        environment: None: ``os.environ``.

    Raises:
        InputError: a launcher's variable is not a number.
    """
    environment = os.environ if environment is None else environment
    for launcher, (rank, size, local) in _LAUNCHERS.items():
        if rank in environment and size in environment:
            values = [environment[rank], environment[size], environment.get(local, "0")]
            try:
                return Place(*map(int, values), launcher=launcher)
            except ValueError:
                raise InputError(
                    f"{rank}, {size}, {local} are {values} in the environment: start "
                    f"the ranks with {launcher} or give --local-ranks"
                ) from None
    return Place(0, 1, 0, "none")
