"""Buffers of a model, such as running statistics, follow rank 0."""

from __future__ import annotations

import torch
from torch import nn

from comm_plan.runtime.flat import broadcast_tensors
from comm_plan.transports.base import Transport


class Buffers:
    """Those of the modules that have some when this is made.

    Args:
        model: whose.
        ranks: that have it too.

    Attributes:
        touched: a training forward may have changed them since they were aligned.
        shadowing: this rank has no batches left, and only shadows the others' steps.
    """

    def __init__(self, model: nn.Module, ranks: Transport) -> None:
        self.touched = False
        self.shadowing = False
        self._ranks = ranks
        self._modules = tuple(
            m for m in model.modules() if any(True for _ in m.buffers(recurse=False))
        )

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The buffers, as they are now."""
        return [b for m in self._modules for b in m.buffers(recurse=False)]

    def align(self, *, joined: bool) -> None:
        """Give all ranks the same, if any rank's may have changed; all ranks call it.

        Args:
            joined: within ``Join``, some ranks may have no batches left: those of the
                last rank that has some count, and rank 0's else.

        Raises:
            CollectiveError: a collective failed.
        """
        if not self.touched:
            return
        if buffers := self.tensors:
            broadcast_tensors(self._ranks, buffers, self._root(joined))
        self.touched = False

    def _root(self, joined: bool) -> int:
        if not joined:
            return 0
        shadowing = self._ranks.gather_objects(self.shadowing)
        return max(rank for rank, shadow in enumerate(shadowing) if not shadow)
