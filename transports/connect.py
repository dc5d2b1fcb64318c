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

Without a word for the backend it is nccl where there is CUDA, unless the CPU is asked
for, else gloo, also under mpirun: MPI has to be asked for.

Gloo takes the network interface that the host's name resolves to; set
``GLOO_SOCKET_IFNAME`` (NCCL: ``NCCL_SOCKET_IFNAME``) to choose another.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

# The functions of torch.distributed.nn have the default process group of the moment of
# their import as a default argument. Imported later, as by the first optimizer, they
# keep that group after destroy_process_group(), and gloo's threads with it, which abort
# a process that ends while they still drop a tensor.
import torch.distributed.nn.functional

from comm_plan.errors import InputError
from comm_plan.transports.allocator import keep_memory
from comm_plan.transports.backends import BACKENDS, Joining, find_backend
from comm_plan.transports.base import Transport
from comm_plan.transports.liveness import PATIENCE_S
from comm_plan.transports.local import LocalTransport
from comm_plan.transports.ranks import TIMEOUT_S, Place, place

_current: list[Transport] = []  # of the open blocks, the innermost last


def print_to_stderr(error: BaseException) -> None:
    """Print ``error`` as one line, in one piece: other ranks may print too."""
    sys.stderr.write(f"error: {error}\n")
    sys.stderr.flush()


@contextmanager
def connect(
    backend: str | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
    device: torch.device | str | None = None,
    patience_s: float = PATIENCE_S,
    report: Callable[[BaseException], None] = print_to_stderr,
) -> Iterator[Transport]:
    """Join the run this process was started for; leave it at the end of the block.

    A collective that fails in the block because another rank died or failed leaves the
    block as a :class:`~comm_plan.errors.PeerError` that names this rank. Any other
    exception in the block is told to the other ranks and becomes their PeerError.

    Args:
        backend: one of ``BACKENDS``; None: see the module.
        timeout_s: how long to wait for all ranks to come, and for a collective.
        device: where this rank's tensors live. None: the CPU, with nccl the CUDA device
            of the local rank.
        patience_s: a rank silent for so long is given up.
        report: called with the error where this process must end on the spot: stuck
            after another rank's death, or on any failure under MPI, which takes all
            ranks down.

    Raises:
        InputError: no such backend, or the environment does not allow it.
        PeerError: not all ranks came.
    """
    here = place()
    cuda = torch.cuda.is_available() and torch.device(device or "cuda").type == "cuda"
    name = backend or ("nccl" if cuda else "gloo")
    engine = find_backend(name)
    placed_on = _device(engine.device, device, here)
    keep_memory(placed_on)
    if here.world_size == 1:
        with _as_current(LocalTransport(placed_on)) as transport:
            yield transport
        return
    joining = Joining(name, here, placed_on, timeout_s, patience_s, report)
    with engine.load().join(joining) as joined, _as_current(joined) as transport:
        yield transport


def current_transport(
    backend: str | None = None, device: torch.device | None = None
) -> Transport:
    """Return the transport of the run that this process has joined.

    That is the one of the surrounding :func:`connect` block, else torch's default
    process group, else what the run of ``backend`` is joined by (mpi: MPI's world),
    else, for a process that no launcher started, a :class:`LocalTransport`.

    Args:
        backend: what is joined where torch has no process group.
        device: where the model lives, and so what is to be moved; a surrounding block
            has its own.

    Raises:
        InputError: this process is one of several and has joined no run.
    """
    if _current:
        return _current[-1]
    here = place()
    group = BACKENDS["gloo"].load().joined(here, device)
    if group is not None:
        return group
    if here.world_size == 1:
        return LocalTransport(device)
    transport = find_backend(backend).load().joined(here, device) if backend else None
    if transport is None:
        raise InputError(
            f"this is rank {here.rank} of {here.world_size} and has joined no run: "
            "call torch.distributed.init_process_group() first, or work in a "
            "`with comm_plan.connect():` block"
        )
    return transport


@contextmanager
def _as_current(transport: Transport) -> Iterator[Transport]:
    _current.append(transport)
    try:
        yield transport
    finally:
        _current.pop()


def _device(kind: str, device: torch.device | str | None, here: Place) -> torch.device:
    """Return where this rank's tensors live; a CUDA device becomes the current one.

    Raises:
        InputError: the rank has none, or the backend cannot do with another.
    """
    chosen = torch.device(device or kind)
    if chosen.type != "cuda":
        if kind == "cuda":
            raise InputError(
                f"nccl moves what is on CUDA devices, not on the {chosen.type}: give "
                "the backend gloo or mpi"
            )
        return chosen
    if chosen.index is None:
        chosen = torch.device("cuda", _cuda_index(here, is_shared=kind != "cuda"))
    torch.cuda.set_device(chosen)
    return chosen


def _shows_each_its_own(launcher: str) -> bool:
    """Return whether the one device that is visible may be this rank's alone.

    So does ``srun --gpus-per-task``, and a script under mpirun that names it.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names_one = named != "" and "," not in named
    return launcher == "srun" or (launcher in ("mpirun", "mpiexec") and names_one)


def _cuda_index(here: Place, *, is_shared: bool) -> int:
    """Return the number of this rank's CUDA device.

    Args:
        here: the rank.
        is_shared: whether several ranks may have the same; else it is its own.

    Raises:
        InputError: it has none.
    """
    visible = torch.cuda.device_count()
    if is_shared and visible:
        return here.local_rank % visible
    if visible == 1 and _shows_each_its_own(here.launcher):
        return 0
    if here.local_rank >= visible:
        raise InputError(
            f"local rank {here.local_rank} needs a CUDA device of its own, {visible} "
            "are visible: start fewer ranks per host, let them share by the backend "
            "gloo, or take --device cpu"
        )
    return here.local_rank
