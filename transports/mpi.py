"""MPI through mpi4py.

Tensors are handed over as buffers of the CPU; a CUDA tensor is copied there and back.
MPI has no half-precision type, so fp16 and bf16 are reduced here: all-to-all of the
parts, sum in float32, all-gather, which moves the volume of a ring all-reduce.

A failed rank calls ``MPI_Abort``: mpirun then ends the others and names that rank. What
mpirun does not see (a rank that is stopped or has left, a call that takes longer than
the timeout) is found by the others (:mod:`~comm_plan.transports.liveness`).
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from comm_plan.errors import CollectiveError, InputError
from comm_plan.transports import watch
from comm_plan.transports.backends import Joining
from comm_plan.transports.base import Reduction, Transport
from comm_plan.transports.calls import Calls
from comm_plan.transports.links import address_of_rank_0
from comm_plan.transports.liveness import Liveness
from comm_plan.transports.ranks import RANK_0_FIRST_S, Place
from comm_plan.transports.staging import on_cpu

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:  # RuntimeError: no MPI library
    raise InputError(
        f"MPI cannot be used ({error}): install mpi4py and an MPI with "
        "`pip install 'comm-plan[mpi]'`"
    ) from error

_OPERATIONS = {"sum": MPI.SUM, "max": MPI.MAX}
_HALF = (torch.float16, torch.bfloat16)
PIECE_NBYTES = 2**30
"""Of what is broadcast at once: from 2 GiB on, Open MPI refuses bytes."""

_LAST_S = 1800.0  # of a call in a user's own program: what torch allows there


class MpiTransport(Transport):
    """Collectives of one MPI communicator.

    Args:
        communicator: None: ``MPI.COMM_WORLD``.
        device: where this rank's tensors live; None: the CPU.
        owns_communicator: whether :meth:`close` frees the communicator.
        calls: where its calls are counted while they are under way; None: nowhere.
    """

    backend = "mpi"

    def __init__(
        self,
        communicator: MPI.Comm | None = None,
        *,
        device: torch.device | None = None,
        owns_communicator: bool = False,
        calls: Calls | None = None,
    ) -> None:
        self._calls = calls or Calls(timeout_s=math.inf)
        self._comm = communicator or MPI.COMM_WORLD
        self._owns_communicator = owns_communicator
        self.rank = self._comm.Get_rank()
        self.world_size = self._comm.Get_size()
        self.device = device or torch.device("cpu")

    def all_reduce(self, tensor: torch.Tensor, operation: Reduction = "sum") -> None:
        """Reduce in place."""
        if tensor.dtype in _HALF:
            self._reduce_half(tensor, operation)
            return
        with self._named("all-reduce"), _array_on_cpu(tensor) as buffer:
            self._comm.Allreduce(MPI.IN_PLACE, buffer, op=_OPERATIONS[operation])

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Gather equal lengths."""
        gathered = torch.empty(self.world_size * tensor.numel(), dtype=tensor.dtype)
        with self._named("all-gather"):
            self._comm.Allgather(_raw(tensor.cpu()), _raw(gathered))
        return gathered.view(self.world_size, -1).to(tensor.device)

    def all_gather_unequal(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Gather the lengths, then the messages with MPI_Allgatherv."""
        with self._named("all-gather of unequal lengths"):
            lengths = self._comm.allgather(tensor.numel())
            gathered = torch.empty(sum(lengths), dtype=tensor.dtype)
            counts = [n * tensor.element_size() for n in lengths]
            self._comm.Allgatherv(_raw(tensor.cpu()), [_raw(gathered), counts])
        return list(torch.split(gathered.to(tensor.device), lengths))

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum and scatter."""
        if tensor.dtype in _HALF:
            return self._sum_my_part(tensor)
        part = torch.empty(tensor.numel() // self.world_size, dtype=tensor.dtype)
        with self._named("reduce-scatter"):
            self._comm.Reduce_scatter_block(tensor.cpu().numpy(), part.numpy())
        return part.to(tensor.device)

    def all_to_all(self, tensor: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Exchange the parts with MPI_Alltoallv."""
        own, size = counts[self.rank], tensor.element_size()
        received = torch.empty(self.world_size, own, dtype=tensor.dtype)
        sent_nbytes = [count * size for count in counts]
        received_nbytes = [own * size] * self.world_size
        with self._named("all-to-all"):
            self._comm.Alltoallv(
                [_raw(tensor.cpu()), sent_nbytes],
                [_raw(received.view(-1)), received_nbytes],
            )
        return received.to(tensor.device)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Broadcast in place."""
        with self._named("broadcast"), _bytes_on_cpu(tensor) as buffer:
            self._broadcast_bytes(buffer, root)

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send, blocking."""
        with self._named(f"send to rank {to}"):
            self._comm.Send(_raw(tensor.cpu()), dest=to)

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """Receive, blocking."""
        with (
            self._named(f"receive from rank {source}"),
            _bytes_on_cpu(tensor) as buffer,
        ):
            self._comm.Recv(buffer, source=source)

    def exchange(
        self, tensor: torch.Tensor, to: int, received: torch.Tensor, source: int
    ) -> None:
        """Send and receive at once."""
        with (
            self._named(f"exchange with ranks {to} and {source}"),
            _bytes_on_cpu(received) as buffer,
        ):
            self._comm.Sendrecv(
                _raw(tensor.cpu()), dest=to, recvbuf=buffer, source=source
            )

    def barrier(self) -> None:
        """Wait for all ranks."""
        with self._named("barrier"):
            self._comm.Barrier()

    def gather_objects(self, value: Any) -> list[Any]:
        """Gather pickles."""
        with self._named("gather of objects"):
            values: list[Any] = self._comm.allgather(value)
        return values

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Broadcast a pickle."""
        with self._named("broadcast of an object"):
            if self.rank == root:
                pickled = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
                self._comm.bcast(len(pickled), root=root)
            else:
                pickled = np.empty(self._comm.bcast(None, root=root), dtype=np.uint8)
            self._broadcast_bytes(pickled, root)
            return value if self.rank == root else pickle.loads(pickled.data)

    def duplicate(self) -> MpiTransport:
        """Duplicate the communicator."""
        return MpiTransport(
            self._comm.Dup(),
            device=self.device,
            owns_communicator=True,
            calls=self._calls,
        )

    def close(self) -> None:
        """Free the communicator if this transport made it."""
        if self._owns_communicator:
            self._comm.Free()

    def abort(self, exit_code: int = 1) -> None:
        """End every rank of the run."""
        MPI.COMM_WORLD.Abort(exit_code)

    def _broadcast_bytes(self, buffer: npt.NDArray[np.uint8], root: int) -> None:
        for start in range(0, len(buffer), PIECE_NBYTES):
            self._comm.Bcast(buffer[start : start + PIECE_NBYTES], root=root)

    @contextmanager
    def _named(self, operation: str) -> Iterator[None]:
        try:
            with self._calls.under_way(operation):
                yield
        except MPI.Exception as error:
            raise CollectiveError(f"{operation} failed: {error}") from error

    def _reduce_half(self, tensor: torch.Tensor, operation: Reduction) -> None:
        if operation == "max":
            wide = tensor.float()
            self.all_reduce(wide, "max")
            tensor.copy_(wide)
            return
        padding = -tensor.numel() % self.world_size
        part = self._sum_my_part(torch.nn.functional.pad(tensor, (0, padding)))
        tensor.copy_(self.all_gather(part).flatten()[: tensor.numel()])

    def _sum_my_part(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return [n / P]: this rank's part of the sum of ``tensor`` [n]."""
        counts = [tensor.numel() // self.world_size] * self.world_size
        return self.all_to_all(tensor, counts).float().sum(0).to(tensor.dtype)


@contextmanager
def join(joining: Joining) -> Iterator[Transport]:
    """Join MPI's world; a failure in the block is reported and takes all ranks down.

    Raises:
        InputError: MPI has other ranks than the launcher started, or no threads.
        PeerError: the ranks cannot connect to rank 0.
    """
    calls = Calls(joining.timeout_s)
    transport = _transport(joining.here, joining.device, calls)
    transport.liveness = Liveness(
        transport,
        address=address_of_rank_0(transport),
        report=joining.report,
        patience_s=joining.patience_s,
        calls=calls,
    )
    try:
        yield transport
        transport.barrier()  # who leaves first would look dead to the others
    except BaseException as error:
        if isinstance(error, InputError) and transport.rank > 0:
            time.sleep(RANK_0_FIRST_S)
        joining.report(error)
        transport.abort(getattr(error, "exit_code", 1))
        raise
    transport.liveness.close()


def joined(here: Place, device: torch.device | None = None) -> Transport | None:
    """Return the transport of MPI's world, which every rank of mpirun is in.

    It moves what is in main memory. The watch over its ranks begins with the first
    call, of all of them.
    """
    known = watch.current(MPI.COMM_WORLD)
    if known is not None:
        return known.ranks
    calls = Calls(_LAST_S)
    world = _transport(here, torch.device("cpu"), calls)
    address = address_of_rank_0(world)
    watch.begin(world, MPI.COMM_WORLD, address=address, calls=calls)
    return world


def mpi_world() -> MPI.Comm:
    """Return MPI's world.

    Raises:
        InputError: MPI does not allow calls from several threads.
    """
    level = MPI.Query_thread()
    if level < MPI.THREAD_SERIALIZED:
        raise InputError(
            f"MPI has thread level {level}, below MPI_THREAD_SERIALIZED "
            f"({MPI.THREAD_SERIALIZED}): use an MPI built with threads and leave "
            "mpi4py.rc.thread_level alone"
        )
    return MPI.COMM_WORLD


def _transport(here: Place, device: torch.device, calls: Calls) -> MpiTransport:
    transport = MpiTransport(mpi_world(), device=device, calls=calls)
    if transport.world_size != here.world_size:
        raise InputError(
            f"MPI has {transport.world_size} ranks, {here.launcher} started "
            f"{here.world_size}: start the ranks with mpirun for the backend mpi"
        )
    return transport


def _raw(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the bytes of a contiguous CPU tensor, shared."""
    buffer: npt.NDArray[np.uint8] = tensor.detach().view(torch.uint8).numpy()
    return buffer


@contextmanager
def _array_on_cpu(tensor: torch.Tensor) -> Iterator[npt.NDArray[Any]]:
    """Lend ``tensor`` as a NumPy array that is written back."""
    with on_cpu(tensor) as staged:
        yield staged.numpy()


@contextmanager
def _bytes_on_cpu(tensor: torch.Tensor) -> Iterator[npt.NDArray[np.uint8]]:
    """Lend the bytes of ``tensor``, written back."""
    with _array_on_cpu(tensor.view(torch.uint8)) as buffer:
        yield buffer
