"""How far a rank has come in its data, in a form that fits into a line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far a rank has come in its data.

    Attributes:
        epoch: from 0.
        batches: of this epoch that it has begun.
        at_end: whether it has no more of them.
    """

    epoch: int = 0
    batches: int = 0
    at_end: bool = False

    def __str__(self) -> str:
        """Return three numbers."""
        return f"{self.epoch} {self.batches} {int(self.at_end)}"

    @classmethod
    def parse(cls, numbers: str) -> Progress:
        """Return what :meth:`__str__` wrote."""
        epoch, batches, at_end = map(int, numbers.split())
        return cls(epoch, batches, bool(at_end))

    @property
    def in_order(self) -> tuple[int, int]:
        """What is greater further on."""
        return self.epoch, self.batches

    def ran_out_before(self, other: Progress) -> bool:
        """Return whether ``other`` has more batches in the same epoch."""
        return (
            self.at_end and self.epoch == other.epoch and self.batches < other.batches
        )
