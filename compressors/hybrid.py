"""Hybrid: variance-based and Strom together (VGC paper, section 4.5, figure 2).

An element is sent when both agree: ``|r| > tau`` (Strom) and ``r^2 > alpha * v`` (VGC,
eq. 3). What is sent is ``S = sign(r) * tau``, and as only a part of r is gone, only a
part of v goes with it::

    r -= S
    v  = max(v - 2 |r_before| tau + tau^2, 0)

as (g - S)^2 = g^2 - 2 g S + S^2 would do for a single sample.

The message is the same as Strom's.

Differences from the paper: v decays by zeta at every step as in section 4.4, also for
an element that was just sent (see :mod:`~comm_plan.compressors.vgc`).
"""

from __future__ import annotations

from typing import Any

import torch

from comm_plan.compressors.base import RESIDUAL, VARIANCE
from comm_plan.compressors.strom import StromCompressor
from comm_plan.compressors.vgc import accumulate, unambiguous
from comm_plan.compressors.words import Array
from comm_plan.plans.compression import Hybrid


class HybridCompressor(StromCompressor[Hybrid]):
    """Sends plus or minus ``spec.tau`` for unambiguous elements above it."""

    judged_by = (RESIDUAL, VARIANCE)

    def add(
        self,
        index: int,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None = None,
    ) -> None:
        """Add the gradient to the residual and its second moment to the variance."""
        super().add(index, gradient)
        accumulate(self.state[VARIANCE][index], second_moment, self.spec.zeta)

    def _is_sent(self, *judged: torch.Tensor) -> torch.Tensor:
        residual, variance = judged
        criterion = unambiguous(residual, variance, self.spec.alpha)
        return super()._is_sent(residual) & criterion

    def _found(self, compiled: Any, *arrays: Array) -> Array:
        residual, variance, scratch = arrays
        alpha, tau = self.spec.alpha, self._tau
        found: Array = compiled.unambiguous(residual, variance, alpha, tau, scratch)
        return found

    def _take(
        self, position: torch.Tensor, residual: torch.Tensor, sent: torch.Tensor
    ) -> torch.Tensor:
        tau, variance = self._tau, self._flat[VARIANCE].index_select(0, position)
        left = super()._take(position, residual, sent)
        variance -= 2 * tau * residual.abs() - tau**2
        self._flat[VARIANCE].index_copy_(0, position, variance.clamp_min_(0))
        return left
