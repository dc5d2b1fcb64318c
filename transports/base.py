"""What every transport offers: the primitives that aggregations are written with.

A transport moves flat, contiguous tensors between the ranks of one run. Every call
blocks (on CUDA with NCCL: orders work on the current stream), and every rank must make
the same calls in the same order on one transport; call it from one thread at a time.
A second, independent channel comes from :meth:`Transport.duplicate`.

Sizes: P is the world size, n the number of elements of the argument.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from comm_plan.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from comm_plan.errors import CollectiveError, RunError
    from comm_plan.plans import EmulatedLink
    from comm_plan.transports.liveness import Liveness

Reduction = Literal["sum", "max"]


class Transport(ABC):
    """Blocking collectives between the ranks of a run.

    Attributes:
        backend: ``gloo``, ``nccl``, ``mpi`` or ``local``.
        rank: this process's rank, from 0.
        world_size: number of ranks.
        device: where the tensors of this rank live.
        emulated_link: what its collectives are held back to; None: nothing.
        liveness: what is told how far this rank is in its data; None: nobody asks.

    Every method raises :class:`~comm_plan.errors.CollectiveError` when the collective
    fails or times out.
    """

    backend: str
    rank: int
    world_size: int
    device: torch.device
    emulated_link: EmulatedLink | None = None
    liveness: Liveness | None = None

    @abstractmethod
    def all_reduce(self, tensor: torch.Tensor, operation: Reduction = "sum") -> None:
        """Reduce ``tensor`` [n] over all ranks, in place.

        int8 sums must stay within [-127, 127]: some engines saturate, others wrap.
        """

    @abstractmethod
    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return [P, n]: row r is rank r's ``tensor`` [n]; n is equal on all ranks."""

    @abstractmethod
    def all_gather_unequal(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return rank r's ``tensor`` as entry r; lengths may differ, also be 0."""

    @abstractmethod
    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return [n / P]: this rank's part of the sum of ``tensor`` [n]."""

    @abstractmethod
    def all_to_all(self, tensor: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Return [P, counts of this rank]: row p is this rank's part of rank p's.

        Args:
            tensor: [n], a part for every rank, by rank.
            counts: elements of each part, the same on all ranks; they add up to n.
        """

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Overwrite ``tensor`` [n] with that of rank ``root``."""

    @abstractmethod
    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send ``tensor`` [n] to rank ``to``, which must :meth:`receive` it."""

    @abstractmethod
    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """Overwrite ``tensor`` [n] with what rank ``source`` sends."""

    @abstractmethod
    def exchange(
        self, tensor: torch.Tensor, to: int, received: torch.Tensor, source: int
    ) -> None:
        """Send ``tensor`` [n] to rank ``to`` while ``source`` fills ``received`` [m].

        Both may be the same rank; no one waits for a third.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Return once every rank has come here."""

    @abstractmethod
    def gather_objects(self, value: Any) -> list[Any]:
        """Return every rank's picklable ``value``, by rank."""

    @abstractmethod
    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return rank ``root``'s picklable ``value``."""

    @abstractmethod
    def duplicate(self) -> Transport:
        """Return an independent transport over the same ranks (a collective call)."""

    @abstractmethod
    def close(self) -> None:
        """Give the engine's resources back; no call may follow."""

    @property
    def process_group(self) -> ProcessGroup | None:
        """The process group of torch.distributed; None: its default one.

        Raises:
            InputError: there is none.
        """
        raise InputError(f"the ranks of {self.backend} are no process group of torch")

    def explain(self, error: CollectiveError) -> RunError:
        """Return what to raise in place of ``error``: who is to blame, if known."""
        return error

    def abort(self, exit_code: int = 1) -> None:  # noqa: B027  (most need nothing)
        """Take the whole run down after a failure, where the launcher would not."""
