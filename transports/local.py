"""One rank alone: every collective is the identity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from comm_plan.errors import CollectiveError
from comm_plan.transports.base import Reduction, Transport


class LocalTransport(Transport):
    """The transport of a run with world size 1.

    Args:
        device: where the tensors live; None: the CPU.
    """

    backend = "local"
    rank = 0
    world_size = 1

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")

    def all_reduce(self, tensor: torch.Tensor, operation: Reduction = "sum") -> None:
        """Leave ``tensor`` as it is."""

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return [1, n]."""
        return tensor.clone().view(1, -1)

    def all_gather_unequal(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return one entry."""
        return [tensor.clone()]

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy."""
        return tensor.clone()

    def all_to_all(self, tensor: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Return [1, n]."""
        return tensor.clone().view(1, -1)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Leave ``tensor`` as it is."""

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Refuse: there is nobody."""
        raise CollectiveError(f"send to rank {to} failed: this run has one rank")

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """Refuse: there is nobody."""
        raise CollectiveError(f"receive from rank {source} failed: this run has one")

    def exchange(
        self, tensor: torch.Tensor, to: int, received: torch.Tensor, source: int
    ) -> None:
        """Refuse: there is nobody."""
        raise CollectiveError(f"exchange with rank {to} failed: this run has one")

    def barrier(self) -> None:
        """Return at once."""

    def gather_objects(self, value: Any) -> list[Any]:
        """Return one entry."""
        return [value]

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return ``value``."""
        return value

    def duplicate(self) -> LocalTransport:
        """Return another one."""
        return LocalTransport(self.device)

    def close(self) -> None:
        """Nothing to give back."""
