"""Second moments estimated from the gradients of micro-batches.

The mini-batch of B samples is cut into m micro-batches of B / m, each of which runs
forward and backward on its own while gradients accumulate::

    for part in zip(inputs.chunk(m), targets.chunk(m)):
        (loss(model(part[0]), part[1]) / m).backward()

The j-th backward adds ``G_j = sum over its samples of g_z / B``; their sum is the
batch's gradient ``r = sum_j G_j``. For independent samples with mean mu and variance
sigma^2, per element:

    exact                 E[sum_z (g_z / B)^2] = (mu^2 + sigma^2) / B
    naive                 E[sum_j G_j^2]       = mu^2 / m + sigma^2 / B

The naive sum needs no factor where the mean is small, but overestimates by
``mu^2 (1/m - 1/B)`` where it is not. As ``E[r^2] = mu^2 + sigma^2 / B``, the mean can
be taken out and put back at its right weight:

    estimate = a * (sum_j G_j^2 - r^2 / m) + r^2 / B,    a = (1 - 1/B) / (1 - 1/m)

It is unbiased for any mu, never negative (the bracket is ``sum_j (G_j - r/m)^2``), and
exact for m = B. Its relative error falls with m: it has m - 1 degrees of freedom, a
standard deviation of about ``sqrt(2 / (m - 1))`` of the variance part for each element.

The cost is two more copies of the gradients and no computation to speak of; smaller
micro-batches may use the device less well. Layers that mix samples see micro-batches.
Sparse and complex gradients are passed over: nothing that takes them needs an estimate.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from comm_plan.errors import MismatchError
from comm_plan.runtime.hooks import copyable
from comm_plan.runtime.second_moments.batch import batch_size


class _Accumulated:
    """What is known of one parameter within a mini-batch."""

    def __init__(self) -> None:
        self.backwards = 0
        self.gradient: torch.Tensor | None = None
        self.squares: torch.Tensor | None = None


class MicroBatchSecondMoments:
    """Estimates second moments from ``micro_batches`` backward passes a step.

    Args:
        model: called as a whole, with the batch in the first dimension of its inputs.
        micro_batches: m, backward passes per step, of equally many samples.

    Raises:
        MismatchError: ``micro_batches`` is less than 2: one shows no variance.
    """

    of_parts = True

    def __init__(self, model: nn.Module, micro_batches: int) -> None:
        """Attach the hooks."""
        if micro_batches < 2:
            raise MismatchError(
                f"second moments from {micro_batches} micro-batches: at least 2 are "
                "needed"
            )
        self.micro_batches = micro_batches
        self._names = {p: name for name, p in model.named_parameters()}
        trained = [p for p in self._names if p.requires_grad]
        self._accumulated = {parameter: _Accumulated() for parameter in trained}
        self._samples = 0
        before_forward = model.register_forward_pre_hook(
            copyable(self._on_micro_batch), with_kwargs=True
        )
        self._handles = [
            before_forward,
            *(
                p.register_post_accumulate_grad_hook(copyable(self._on_gradient))
                for p in trained
            ),
        ]

    def of(self, parameter: nn.Parameter) -> torch.Tensor:
        """Hand over the estimate for the step's mini-batch.

        Args:
            parameter: one of the model's, after its last backward of the step; its
                ``.grad`` is the sum over the micro-batches, dense and real.

        Returns:
            The estimate of ``sum_z (g_z / |B|)^2``, shaped like ``parameter``.

        Raises:
            MismatchError: the backward passes were not ``micro_batches``.
        """
        seen, m = self._accumulated[parameter], self.micro_batches
        self._accumulated[parameter] = _Accumulated()
        if seen.backwards != m:
            raise MismatchError(
                f"parameter {self._names[parameter]} saw {seen.backwards} backward "
                f"passes instead of {m} micro-batches: call backward on each of them"
            )
        gradient, squares = seen.gradient, seen.squares
        assert gradient is not None and squares is not None
        batch = m * self._samples
        square = gradient.square()
        spread = squares.sub_(square, alpha=1 / m).clamp_min_(0)
        weight = (1 - 1 / batch) / (1 - 1 / m)
        return spread.mul_(weight).add_(square, alpha=1 / batch)

    def knows(self, parameter: nn.Parameter) -> bool:
        """Return whether there were backward passes since :meth:`of`."""
        return self._accumulated[parameter].backwards > 0

    def reset(self) -> None:
        """Forget the backward passes so far, but not the forward that may be next.

        An engine calls it when it gives a step up. Gradients that are set to None need
        no call; call it where some are thrown away otherwise.
        """
        for parameter in self._accumulated:
            self._accumulated[parameter] = _Accumulated()

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()

    def _on_micro_batch(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if torch.is_grad_enabled():
            self._samples = batch_size((args, kwargs))
            for parameter in self._accumulated:
                if parameter.grad is None:  # thrown away, if there was one
                    self._accumulated[parameter] = _Accumulated()

    @torch.no_grad()
    def _on_gradient(self, parameter: nn.Parameter) -> None:
        seen, gradient = self._accumulated[parameter], parameter.grad
        assert gradient is not None
        if gradient.is_sparse or gradient.is_complex():
            return
        seen.backwards += 1
        if seen.gradient is None or seen.squares is None:
            seen.gradient = gradient.clone()
            seen.squares = gradient.square()
            return
        own = gradient - seen.gradient
        seen.squares.addcmul_(own, own)
        seen.gradient.copy_(gradient)
