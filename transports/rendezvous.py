"""Where the ranks of a run meet: rank 0's address and a free port there."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping

from comm_plan.errors import InputError
from comm_plan.transports.launch import free_port
from comm_plan.transports.ranks import Place


def rendezvous(
    here: Place, environment: Mapping[str, str] | None = None
) -> tuple[str, int]:
    """Return the host and port at which torch's ranks meet.

    These are MASTER_ADDR and MASTER_PORT. Where they are not set: under srun the step's
    first host and a port derived from the job's number, under mpirun what the ranks
    agree upon through MPI.

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
    if here.launcher in ("mpirun", "mpiexec") and not (host and port):
        return _through_mpi(here)
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


def _through_mpi(here: Place) -> tuple[str, int]:
    from comm_plan.transports.mpi import mpi_world

    world = mpi_world()
    hosts = world.allgather(socket.gethostname())
    host = "127.0.0.1" if len(set(hosts)) == 1 else hosts[0]
    port: int = world.bcast(free_port() if here.rank == 0 else None)
    return host, port
