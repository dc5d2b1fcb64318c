"""From a started process to a transport: who started the ranks, and where they meet.

=======================  ==========  ==================================================
started by               backends    rank 0's address and a free port there
=======================  ==========  ==================================================
torchrun, --local-ranks  gloo, nccl  MASTER_ADDR, MASTER_PORT
srun                     gloo, nccl  the same, else the step's first host and a port
                                     derived from the job's number
mpirun, mpiexec          gloo, nccl  the same, else agreed upon through mpi4py
mpirun, mpiexec          mpi         (none needed)
nothing: world size 1    any         (none needed: a LocalTransport)
=======================  ==========  ==================================================

The backend ``auto`` is nccl where there is CUDA, else gloo, also under mpirun: MPI has
to be asked for.

Gloo takes the network interface that the host's name resolves to; set
``GLOO_SOCKET_IFNAME`` (NCCL: ``NCCL_SOCKET_IFNAME``) to choose another.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist

from comm_plan.errors import CollectiveError, InputError, PeerError
from comm_plan.transports.base import Transport
from comm_plan.transports.distributed import TorchTransport
from comm_plan.transports.launch import free_port
from comm_plan.transports.links import reachable_address
from comm_plan.transports.liveness import Liveness
from comm_plan.transports.local import LocalTransport
from comm_plan.transports.ranks import (
    RANK_0_FIRST_S,
    Place,
    place,
    rendezvous,
)

Backend = Literal["auto", "gloo", "nccl", "mpi"]


_current: list[Transport] = []  # of the open blocks, the innermost last


def print_to_stderr(error: BaseException) -> None:
    """Print ``error`` as one line."""
    print(f"error: {error}", file=sys.stderr, flush=True)


@contextmanager
def connect(
    backend: Backend = "auto",
    *,
    timeout_s: float = 300.0,
    device: torch.device | str | None = None,
    patience_s: float = 15.0,
    report: Callable[[BaseException], None] = print_to_stderr,
) -> Iterator[Transport]:
    """Join the run this process was started for; leave it at the end of the block.

    A collective that fails in the block because another rank died or failed leaves the
    block as a :class:`~comm_plan.errors.PeerError` that names this rank. Any other
    exception in the block is told to the other ranks and becomes their PeerError.

    Args:
        backend: see the module.
        timeout_s: how long to wait for all ranks to come, and for a collective.
        device: where this rank's tensors live. None: the CPU, with nccl the CUDA device
            of the local rank.
        patience_s: a rank silent for so long is given up.
        report: called with the error where this process must end on the spot: stuck
            after another rank's death, or on any failure under MPI, which takes all
            ranks down.

    Raises:
        InputError: the environment does not allow ``backend``.
        PeerError: not all ranks came.
    """
    here = place()
    if backend == "auto":
        backend = "nccl" if torch.cuda.is_available() else "gloo"
    placed_on = _device(backend, device, here)
    with ExitStack() as stack:
        transport: Transport
        if here.world_size == 1:
            transport = LocalTransport(placed_on)
        elif backend == "mpi":
            transport = stack.enter_context(_mpi(here, placed_on, report))
        else:
            host, port = _agree_on_rendezvous(here)
            stack.enter_context(
                _process_group(backend, here, placed_on, host, port, timeout_s)
            )
            transport = TorchTransport(device=placed_on, timeout_s=timeout_s)
            stack.enter_context(_watched(transport, host, patience_s, report))
        _current.append(transport)
        stack.callback(_current.pop)
        yield transport


def current_transport(backend: str | None = None) -> Transport:
    """Return the transport of the run that this process has joined.

    That is the one of the surrounding :func:`connect` block, else torch's default
    process group, else for ``backend`` mpi MPI's world, else, for a process that no
    launcher started, a :class:`LocalTransport`.

    Raises:
        InputError: this process is one of several and has joined no run.
    """
    if _current:
        return _current[-1]
    if dist.is_initialized():
        return TorchTransport()
    here = place()
    if here.world_size == 1:
        return LocalTransport()
    if backend == "mpi":
        return _mpi_world(here, torch.device("cpu"))
    raise InputError(
        f"this is rank {here.rank} of {here.world_size} and has joined no run: call "
        "torch.distributed.init_process_group() first, or work in a `with "
        "comm_plan.transports.connect.connect():` block"
    )


@contextmanager
def _process_group(
    backend: str,
    here: Place,
    device: torch.device,
    host: str,
    port: int,
    timeout_s: float,
) -> Iterator[None]:
    try:
        dist.init_process_group(
            backend,
            init_method=f"tcp://{f'[{host}]' if ':' in host else host}:{port}",
            rank=here.rank,
            world_size=here.world_size,
            timeout=timedelta(seconds=timeout_s),
            device_id=device if backend == "nccl" else None,
        )
    except RuntimeError as error:
        detail = " ".join(str(error).split())[:300]
        raise PeerError(
            f"rank {here.rank} did not meet all {here.world_size} ranks at {host} port "
            f"{port}: check that all were started and reach this address ({detail})"
        ) from error
    try:
        yield
    except BaseException:
        if backend == "nccl":
            raise  # destroying would wait for the collective that never ends
        dist.destroy_process_group()
        raise
    dist.destroy_process_group()


@contextmanager
def _watched(
    transport: TorchTransport,
    host: str,
    patience_s: float,
    report: Callable[[BaseException], None],
) -> Iterator[Transport]:
    liveness = Liveness(
        transport,
        address=reachable_address(host),
        report=report,
        patience_s=patience_s,
    )
    try:
        yield transport
        transport.barrier()  # rank 0 keeps torch's store: it must not leave first
    except CollectiveError as error:
        raise liveness.explain(error) from error
    except BaseException as error:
        liveness.fail(str(error) or type(error).__name__)
        raise
    finally:
        liveness.close()


@contextmanager
def _mpi(
    here: Place, device: torch.device, report: Callable[[BaseException], None]
) -> Iterator[Transport]:
    transport = _mpi_world(here, device)
    try:
        yield transport
    except BaseException as error:
        if isinstance(error, InputError) and transport.rank > 0:
            time.sleep(RANK_0_FIRST_S)
        report(error)
        transport.abort(getattr(error, "exit_code", 1))
        raise


def _mpi_world(here: Place, device: torch.device) -> Transport:
    _mpi_module()
    from comm_plan.transports.mpi import MpiTransport

    transport = MpiTransport(device=device)
    if transport.world_size != here.world_size:
        raise InputError(
            f"MPI has {transport.world_size} ranks, {here.launcher} started "
            f"{here.world_size}: start the ranks with mpirun for the backend mpi"
        )
    return transport


def _agree_on_rendezvous(here: Place) -> tuple[str, int]:
    """Return the host and port at which torch's ranks meet."""
    agreed = {"MASTER_ADDR", "MASTER_PORT"} <= set(os.environ)
    if agreed or here.launcher not in ("mpirun", "mpiexec"):
        return rendezvous(here)
    world = _mpi_module().COMM_WORLD
    hosts = world.allgather(socket.gethostname())
    host = "127.0.0.1" if len(set(hosts)) == 1 else hosts[0]
    return host, world.bcast(free_port() if here.rank == 0 else None)


def _mpi_module() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: no MPI library
        raise InputError(
            f"MPI cannot be used ({error}): install mpi4py and an MPI with "
            "`pip install comm-plan[mpi]`"
        ) from error
    level = MPI.Query_thread()
    if level < MPI.THREAD_SERIALIZED:
        raise InputError(
            f"MPI has thread level {level}, below MPI_THREAD_SERIALIZED "
            f"({MPI.THREAD_SERIALIZED}): use an MPI built with threads and leave "
            "mpi4py.rc.thread_level alone"
        )
    return MPI


def _device(
    backend: str, device: torch.device | str | None, here: Place
) -> torch.device:
    """Return where this rank's tensors live; with nccl also make it the current one."""
    if backend != "nccl":
        return torch.device(device or "cpu")
    chosen = torch.device(device or f"cuda:{_cuda_index(here)}")
    torch.cuda.set_device(chosen)
    return chosen


def _cuda_index(here: Place) -> int:
    """Return the number of this rank's own CUDA device.

    Raises:
        InputError: it has none.
    """
    visible = torch.cuda.device_count()
    if here.launcher == "srun" and visible == 1:
        return 0  # srun --gpus-per-task shows each rank its own device only
    if here.local_rank >= visible:
        raise InputError(
            f"local rank {here.local_rank} needs a CUDA device of its own, {visible} "
            "are visible: start fewer ranks per host or take the backend gloo"
        )
    return here.local_rank
