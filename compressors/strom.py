"""Strom: send sign(r) * tau where the residual exceeds tau, and keep the rest.

Each step ``r += gradient``; every element with ``|r| > tau`` sends
``S = sign(r) * tau`` and keeps ``r - S`` (Nikko Strom, "Scalable distributed DNN
training using commodity GPU cloud computing", INTERSPEECH 2015; as described in the VGC
paper, section 3). An element sends tau at most once a step, however large it is, so a
tau far below the gradients makes the residuals grow.

The message is nothing but words of :mod:`~comm_plan.compressors.words`, with d = 0.

Differences from the paper: its index is 31 bits and further compressed; here it is the
28-bit one that the VGC paper compares with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from typing_extensions import TypeVar

from comm_plan.compressors.base import VELOCITY, Context, Message, Slot
from comm_plan.compressors.words import Array, WordCompressor, pack, unpack
from comm_plan.plans.compression import Hybrid, Strom

StromT = TypeVar("StromT", bound="Strom | Hybrid", default=Strom, covariant=True)


class StromCompressor(WordCompressor[StromT]):
    """Sends plus or minus ``spec.tau``, by the scale, for elements above it."""

    def __init__(
        self, spec: StromT, collective: str, slots: Sequence[Slot], context: Context
    ) -> None:
        """Start with nothing kept; see :class:`Compressor`."""
        super().__init__(spec, collective, slots, context)
        if context.momentum_of is not None:
            self._remember(VELOCITY)

    @property
    def _tau(self) -> float:
        return self.spec.tau * self.scale

    def encode(self) -> Message:
        """Return the words of the elements above tau, [k] int32."""
        position = self._significant()
        residual = self._residual.index_select(0, position)
        sent = torch.full_like(residual, self._tau).copysign_(residual)
        self._take(position, residual, sent)
        return (pack(position, 0, sent),)

    def _is_sent(self, *judged: torch.Tensor) -> torch.Tensor:
        return torch.gt(judged[0].abs(), self._tau)

    def _found(self, compiled: Any, *arrays: Array) -> Array:
        residual, scratch = arrays
        found: Array = compiled.above(residual, None, self._tau, scratch)
        return found

    def _read(self, message: Message) -> tuple[torch.Tensor, torch.Tensor]:
        (words,) = message
        position, _, sign = unpack(words)
        tau = torch.full_like(words, self._tau, dtype=torch.float32)
        return position, (tau.view(torch.int32) | sign).view(torch.float32)
