"""QSGD: a few stochastic levels per element, one norm per group (Alistarh et al. 2017).

A tensor is cut into groups of d elements (``spec.norm_numel``; the last may be
shorter). With norm N of the group and s = 2^(bits - 1) - 1 levels on either side, an
element becomes ``N / s * l``, where the level l in [-s, s] is the floor or the ceiling
of ``s * g / N``, at random and equal to it on average. So the estimate is unbiased, and
nothing is kept from step to step. The message is ``l + s`` in ``bits`` bits, tensor by
tensor, and the float32 norms.

Differences from the paper: the norm is the largest magnitude instead of the Euclidean
norm, as in the authors' own experiments. The latter makes most levels zero, which only
pays with a variable-length code. At a fixed width the bytes are the same, and the
smaller norm has the smaller variance. Levels are sent at that fixed width instead of in
Elias code, for speed and for a length that is known in advance.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from comm_plan.compressors.base import Compressor, Context, Message, Slot
from comm_plan.compressors.chunks import at_once
from comm_plan.compressors.packing import pack_codes, padded, unpack_codes
from comm_plan.compressors.rounding import StochasticRounding, random_key
from comm_plan.plans.compression import Qsgd
from comm_plan.plans.compression.spec import packed_nbytes

_AT_ONCE = 1 << 18
"""Elements to work on at a time on CPU."""


class QsgdCompressor(Compressor[Qsgd]):
    """Sends packed levels uint8 and norms float32."""

    def __init__(
        self, spec: Qsgd, collective: str, slots: Sequence[Slot], context: Context
    ) -> None:
        """Make the message."""
        super().__init__(spec, collective, slots, context)
        self._levels = 2 ** (spec.bits - 1) - 1
        numels = [slot.numel for slot in self.slots]
        self._packed_numels = [packed_nbytes(n, spec.bits) for n in numels]
        self._norm_numels = [-(-n // spec.norm_numel) for n in numels]
        device = context.device
        self._packed = torch.zeros(
            sum(self._packed_numels), dtype=torch.uint8, device=device
        )
        self._norms = torch.zeros(
            sum(self._norm_numels), dtype=torch.float32, device=device
        )
        self._messages: list[tuple[Sequence[torch.Tensor], ...]] = []

    def add(
        self,
        index: int,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None = None,
    ) -> None:
        """Quantise ``gradient`` into the message."""
        packed, norms = self._split((self._packed, self._norms))
        slot = self.slots[index]
        key = random_key(self.context.seed, self.step, slot.name)
        rounding = StochasticRounding(key)
        groups, nbytes = self._part(gradient)
        parts = zip(
            gradient.split(groups * self.spec.norm_numel),
            packed[index].split(nbytes),
            norms[index].split(groups),
            strict=True,
        )
        for part, codes, largest in parts:
            self._quantise(part, codes, largest, rounding)

    def _quantise(
        self,
        gradient: torch.Tensor,
        packed: torch.Tensor,
        norms: torch.Tensor,
        rounding: StochasticRounding,
    ) -> None:
        """Write the codes of ``gradient`` [n] to ``packed``, its norms to ``norms``."""
        groups = self._grouped(gradient.float())
        torch.amax(groups.abs(), dim=1, out=norms)
        divisors = torch.where(norms == 0, 1.0, norms)
        scaled = (groups / divisors[:, None]).mul_(self._levels)
        levels = torch.empty_like(scaled, dtype=torch.int8)
        rounding.round(scaled.view(-1), levels.view(-1))
        codes = levels.add_(self._levels).view(torch.uint8).view(-1)
        packed.copy_(pack_codes(codes[: gradient.numel()], self.spec.bits))

    def _part(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Return how many groups are worked on at a time, and their packed bytes.

        On CPU as many as fit into a cache; they fill whole bytes whatever the bits.
        """
        size = self.spec.norm_numel
        groups = 8 * -(-at_once(tensor, on_cpu=_AT_ONCE) // (8 * size))
        return groups, packed_nbytes(groups * size, self.spec.bits)

    def encode(self) -> Message:
        """Return (packed levels, norms)."""
        return self._packed, self._norms

    def decode(self, messages: Sequence[Message]) -> None:
        """Take every rank's message."""
        self._messages = [self._split(message) for message in messages]

    def write(self, index: int, out: torch.Tensor) -> None:
        """Overwrite ``out`` with the mean of the ranks' estimates."""
        groups, nbytes = self._part(out)
        messages = [
            (packed[index].split(nbytes), norms[index].split(groups))
            for packed, norms in self._messages
        ]
        scale = 1.0 / (self._levels * self.context.world_size)
        for number, part in enumerate(out.split(groups * self.spec.norm_numel)):
            chunks = [(codes[number], norms[number]) for codes, norms in messages]
            torch.mul(self._sum(chunks, part.numel()), scale, out=part)

    def _sum(
        self, chunks: Sequence[tuple[torch.Tensor, torch.Tensor]], numel: int
    ) -> torch.Tensor:
        """Return [numel], the sum of every rank's levels times their norms."""
        norms = chunks[0][1]
        total = norms.new_zeros(len(norms), self.spec.norm_numel)
        for packed, norms in chunks:
            codes = unpack_codes(packed, self.spec.bits, numel)
            levels = codes.view(torch.int8) - self._levels
            total.addcmul_(self._grouped(levels.float()), norms[:, None])
        return total.view(-1)[:numel]

    def _split(self, message: Message) -> tuple[Sequence[torch.Tensor], ...]:
        """Return the packed levels and the norms of every tensor."""
        packed, norms = message
        return (
            torch.split(packed, self._packed_numels),
            torch.split(norms, self._norm_numels),
        )

    def _grouped(self, flat: torch.Tensor) -> torch.Tensor:
        """Return [groups, norm_numel] with zeros after the last element."""
        norm_numel = self.spec.norm_numel
        return padded(flat, norm_numel).view(-1, norm_numel)
