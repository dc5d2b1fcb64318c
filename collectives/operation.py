"""The slots that every measured collective fills.

An operation is one collective at one size on one transport. It brings its own buffers,
``run`` does it once and may be repeated, ``is_right`` does it once on numbers whose
outcome is known: small integers that differ from rank to rank and from element to
element, so that float32 sums are exact and a swapped, lost or doubled part shows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from comm_plan.plans.compression import FLOAT32_NBYTES
from comm_plan.transports.base import Transport

if TYPE_CHECKING:
    import torch

_PERIOD = 251  # a prime, so that the parts of no world size look alike


def pattern(numel: int, device: torch.device) -> torch.Tensor:
    """Return [numel] float32: 0, 1, ... 250, 0, 1, ..."""
    import torch

    period = torch.arange(_PERIOD, dtype=torch.float32, device=device)
    return period.repeat(numel // _PERIOD + 1)[:numel].clone()


class Operation(ABC):
    """One collective at one size.

    Args:
        transport: where it runs; all ranks make the same operations in the same order.
        nbytes: its size as :mod:`comm_plan.collectives.collective` counts it, a
            multiple of :meth:`granularity`.
    """

    time_share = 1.0
    """Cost over the elapsed time of :meth:`run`."""

    largest_nbytes = 2**40
    """Larger ones are not measured: nobody sends them."""

    def __init__(self, transport: Transport, nbytes: int) -> None:
        self.transport = transport
        self.rank_sum = sum(range(transport.world_size))
        self.prepare(nbytes)

    @staticmethod
    def granularity(world_size: int) -> int:
        """Return what ``nbytes`` must be a multiple of."""
        return FLOAT32_NBYTES

    @abstractmethod
    def prepare(self, nbytes: int) -> None:
        """Make the buffers."""

    @abstractmethod
    def run(self) -> None:
        """Do it once."""

    @abstractmethod
    def is_right(self) -> bool:
        """Do it once and return whether the result here follows the definition."""

    def pattern(self, nbytes: int) -> torch.Tensor:
        """Return the numbers that all ranks start from, rank 0's."""
        numel = nbytes // FLOAT32_NBYTES
        return pattern(numel, self.transport.device)

    def is_timed(self) -> bool:
        """Return whether this rank's clock counts."""
        return True
