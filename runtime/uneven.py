"""Ranks with fewer batches than others: they shadow the steps that are left.

``with torch.distributed.algorithms.Join([engine]):`` around the loop does for a plan
what it does for DDP. A rank that has no more batches takes part in the others' steps
with gradients of zero, so means stay divided by the number of all ranks; at the end it
takes over the parameters and buffers of a rank that was among the last.
"""

from __future__ import annotations

from typing import Protocol

from torch.distributed.algorithms.join import JoinHook


class Shadowing(Protocol):
    """What is asked of an engine."""

    def shadow_step(self) -> None:
        """Take part in a step of other ranks."""

    def take_over(self, is_last: bool) -> None:
        """Take over the model of a rank for which ``is_last`` is true."""


class ShadowHook(JoinHook):
    """What a rank without batches does while others have some.

    Args:
        engine: its engine.
    """

    def __init__(self, engine: Shadowing) -> None:
        self._engine = engine

    def main_hook(self) -> None:
        """Shadow one step."""
        self._engine.shadow_step()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Take over the model of the last."""
        self._engine.take_over(is_last_joiner)
