"""Which rank this process is, as the environment says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from comm_plan.errors import InputError

# In this order: torchrun started under srun, say, is torchrun. MPICH's mpiexec always
# sets MPI_LOCALRANKID; srun --mpi=pmi2 sets the PMI variables without it.
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
_LOCAL_RANK_OPTIONAL = {"torchrun"}  # some schedulers set RANK and WORLD_SIZE only


TIMEOUT_S = 300.0
"""How long a collective may take, unless it is told otherwise."""

RANK_0_FIRST_S = 1.0
"""How long other ranks wait with bad input, which mostly all find.

Launchers end all ranks when the first one leaves, and rank 0 is to say what is wrong.
"""


@dataclass(frozen=True)
class Place:
    """A process's place in a run: its rank and who started it."""

    rank: int
    world_size: int
    local_rank: int
    launcher: str  # "torchrun", "mpirun", "mpiexec", "srun" or "none"


_ALONE = Place(0, 1, 0, "none")


def place(environment: Mapping[str, str] | None = None) -> Place:
    """Return this process's place, ``Place(0, 1, 0, "none")`` without a launcher.

    The project's own launcher sets torchrun's variables and counts as torchrun.

    Args:
        environment: None: ``os.environ``.

    Raises:
        InputError: a launcher's variable is not a number, or the rank is not below the
            world size.
    """
    environment = os.environ if environment is None else environment
    for launcher, names in _LAUNCHERS.items():
        needed = names[:2] if launcher in _LOCAL_RANK_OPTIONAL else names
        if all(name in environment for name in needed):
            return _parse(launcher, names, environment)
    return _ALONE


def place_in_errors() -> Place:
    """Return :func:`place`, or one without a launcher where that is the error."""
    try:
        return place()
    except InputError:
        return _ALONE


def _parse(
    launcher: str, names: tuple[str, str, str], environment: Mapping[str, str]
) -> Place:
    values = [environment.get(name, "0") for name in names]
    try:
        rank, world_size, local_rank = map(int, values)
    except ValueError:
        rank = world_size = local_rank = -1
    if not 0 <= rank < world_size or local_rank < 0:
        raise InputError(
            f"{', '.join(names)} are {', '.join(values)} in the environment: start the "
            f"ranks with {launcher} or give --local-ranks"
        )
    return Place(rank, world_size, local_rank, launcher)
