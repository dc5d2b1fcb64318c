"""Which rank this process is and where the ranks meet, as the environment says."""

from __future__ import annotations

import os
import re
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


RANK_0_FIRST_S = 1.0
"""How long other ranks wait with bad input, which mostly all find, under MPI.

mpirun ends all ranks when the first one leaves, and rank 0 is to say what is wrong.
"""


@dataclass(frozen=True)
class Place:
    """A process's place in a run: its rank and who started it."""

    rank: int
    world_size: int
    local_rank: int
    launcher: str  # "torchrun", "mpirun", "mpiexec", "srun" or "none"


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
    return Place(0, 1, 0, "none")


def rendezvous(
    here: Place, environment: Mapping[str, str] | None = None
) -> tuple[str, int]:
    """Return the host and port at which torch's ranks meet.

    These are MASTER_ADDR and MASTER_PORT; under srun, where they are not set, the
    step's first host and a port derived from the job's number.

    Args:
        here: this process's place.
        environment: None: ``os.environ``.

    Raises:
        InputError: there is no host or no valid port.
    """
    environment = os.environ if environment is None else environment
    host = environment.get("MASTER_ADDR", "")
    port = environment.get("MASTER_PORT", "")
    if here.launcher == "srun":
        host = host or first_host(environment.get("SLURM_STEP_NODELIST", ""))
        port = port or _slurm_port(environment)
    if not host or not (port.isdigit() and 0 < int(port) < 2**16):
        raise InputError(
            f"MASTER_ADDR is {host!r} and MASTER_PORT {port!r}: set them to the host "
            "of rank 0 and a free port there"
        )
    return host, int(port)


def first_host(nodelist: str) -> str:
    """Return the first host of a Slurm list: ``rack[2-3]n[07,9],x`` -> ``rack2n07``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first.group() if first else "")


def _slurm_port(environment: Mapping[str, str]) -> str:
    numbers = (environment.get(f"SLURM_{name}_ID", "0") for name in ("JOB", "STEP"))
    return str(20000 + sum(map(int, numbers)) % 10000)  # below the ephemeral ports


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
