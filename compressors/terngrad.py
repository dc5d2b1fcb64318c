"""TernGrad: signs and zeros, right on average (Wen et al., 2017).

Per tensor: clip the gradient to c standard deviations (section 3.3); the scaler s is
the largest magnitude left, shared by taking the maximum over the ranks (section 3.1);
then every element becomes ``s * sign(g) * b``, where b is 1 with probability |g| / s
(Eq. 1 and 3). The mean of that is the clipped gradient. Nothing is kept from step to
step.

With a shared scaler ranks only need to add up trits. ``allreduce`` sends them as int8
and gets the sum, which P <= 127 keeps in range; ``allgather`` sends five a byte
(:mod:`~comm_plan.compressors.packing`), tensor by tensor, and adds on arrival.

Rounding waits for the shared scaler, so a float32 copy of the bucket's clipped
gradients is held until then.

Differences from the paper: there is no parameter server; every rank computes the same
mean. A tensor of equal elements, or of only one, has deviation zero; by the letter it
would be clipped to nothing for ever, here it is not clipped. (One of nearly equal
elements is, as the letter has it: to c deviations, which are little of their mean.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from comm_plan.compressors.base import Compressor, Context, Message, Slot, in_float32
from comm_plan.compressors.chunks import in_chunks
from comm_plan.compressors.loops import loops
from comm_plan.compressors.packing import pack_trits, sum_trits
from comm_plan.compressors.rounding import StochasticRounding, random_key
from comm_plan.plans.compression import TernGrad
from comm_plan.transports.base import Transport


class TernGradCompressor(Compressor[TernGrad]):
    """Sends trits: one tensor, int8 [sum of numels] or packed uint8."""

    def __init__(
        self, spec: TernGrad, collective: str, slots: Sequence[Slot], context: Context
    ) -> None:
        """Make room for the clipped gradients and their trits."""
        super().__init__(spec, collective, slots, context)
        loops(context.device)
        self._numels = [slot.numel for slot in self.slots]
        device = context.device
        self._clipped = self._zeros_by_slot()
        self._scalers = torch.zeros(len(self.slots), dtype=torch.float32, device=device)
        self._trits = torch.zeros(sum(self._numels), dtype=torch.int8, device=device)
        self._messages: list[tuple[torch.Tensor, ...]] = []

    def add(
        self,
        index: int,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None = None,
    ) -> None:
        """Keep the clipped gradient and its largest magnitude."""
        if not gradient.numel():
            return
        gradient = gradient.float()
        low, high = gradient.aminmax()
        scaler = torch.maximum(-low, high)
        clipped = self._clipped[index]
        if self.spec.clip:
            bound = bounds_of(self.spec.clip, deviation(gradient), low, high)
            torch.clamp(gradient, -bound, bound, out=clipped)
            scaler = torch.minimum(scaler, bound)
        else:
            clipped.copy_(gradient)
        self._scalers[index] = scaler

    def agree(self, ranks: Transport) -> None:
        """Share the scalers [number of tensors] float32."""
        ranks.all_reduce(self._scalers, "max")

    def encode(self) -> Message:
        """Round to trits, and pack them for ``allgather``."""
        views = torch.split(self._trits, self._numels)
        divisors = divisors_of(self._scalers)
        for index, slot in enumerate(self.slots):
            key = random_key(self.context.seed, self.step, slot.name)
            scaled = self._clipped[index].div_(divisors[index])
            StochasticRounding(key, scaled.device).round(scaled, views[index])
        if self.collective == "allreduce":
            return (self._trits,)
        return (torch.cat([pack_trits(view) for view in views]),)

    def decode(self, messages: Sequence[Message]) -> None:
        """Take the sum of trits, or every rank's packed trits."""
        lengths = [
            self.spec.message_nbytes([numel], self.collective) for numel in self._numels
        ]  # every trit, or five of them, is one byte
        self._messages = [torch.split(message[0], lengths) for message in messages]

    def write(self, index: int, out: torch.Tensor) -> None:
        """Overwrite ``out`` with the scaler times the mean of the trits."""
        share = self._scalers[index] / self.context.world_size
        messages = [message[index] for message in self._messages]
        if self.collective == "allreduce":
            torch.mul(messages[0], share, out=out)
            return
        with in_float32(out) as mean:
            sum_trits(torch.stack(messages), mean, share)


def deviation(gradient: torch.Tensor) -> torch.Tensor:
    """Return the standard deviation (uncorrected), also where the mean is far larger.

    Several times faster than ``Tensor.std``; equal elements may come out a rounding
    error above 0. Where squares overflow (magnitudes beyond 1e19), or an element is not
    finite, it is inf or NaN; below 1e-23 they vanish and it is 0.

    Args:
        gradient: [numel] float32.
    """
    mean = gradient.mean()
    norms = [torch.linalg.vector_norm(part - mean) for (part,) in in_chunks(gradient)]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    sigma: torch.Tensor = norm / gradient.numel() ** 0.5
    return sigma


def bounds_of(
    clip: float, sigma: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> torch.Tensor:
    """Return the magnitudes that gradients are clipped to; inf: they are not.

    Args:
        clip: how many deviations.
        sigma: of each tensor, the deviation; inf and NaN bound nothing.
        low: of each, the least element.
        high: of each, the greatest.
    """
    bounded = (low < high) & (sigma > 0)
    return torch.where(bounded, clip * sigma, torch.inf)


def divisors_of(scalers: torch.Tensor) -> torch.Tensor:
    """Return what gradients are divided by: ``scalers``, but no zeros."""
    return torch.where(scalers == 0, 1.0, scalers)
