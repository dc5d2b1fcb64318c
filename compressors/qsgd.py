"""QSGD: a few stochastic levels per element, one step per group (Alistarh et al. 2017).

A tensor is cut into groups of d elements (``spec.step_numel``; the last may be
shorter). With norm N of the group and s = 2^(bits - 1) - 1 levels on either side, an
element becomes ``N / s * l``, where the level l in [-s, s] is the floor or the ceiling
of ``s * g / N``, at random and equal to it on average. So the estimate is unbiased, and
nothing is kept from step to step. The message is the records of all groups
(:mod:`comm_plan.compressors.levels`), tensor by tensor.

Differences from the paper: the norm is the largest magnitude instead of the Euclidean
norm, as in the authors' own experiments. The latter makes most levels zero, which only
pays with a variable-length code. At a fixed width the bytes are the same, and the
smaller norm has the smaller variance. Levels are sent at that fixed width instead of in
Elias code, for speed and for a length that is known in advance.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from comm_plan.compressors import levels
from comm_plan.compressors.base import Compressor, Context, Message, Slot, in_float32
from comm_plan.compressors.loops import loops
from comm_plan.compressors.packing import padded
from comm_plan.compressors.rounding import StochasticRounding, random_key
from comm_plan.plans.compression import Qsgd


class QsgdCompressor(Compressor[Qsgd]):
    """Sends the records of all groups, one uint8 tensor.

    With the loops of a CPU a gradient is rounded when it arrives, and so found in the
    caches. Elsewhere it is kept until the bucket is complete: to launch the operations
    for one tensor after the other takes longer than what they do.
    """

    def __init__(
        self, spec: Qsgd, collective: str, slots: Sequence[Slot], context: Context
    ) -> None:
        """Make the message."""
        super().__init__(spec, collective, slots, context)
        self._groups = [spec.groups(slot.numel) for slot in self.slots]
        self._records = torch.zeros(
            (sum(self._groups), spec.record_nbytes),
            dtype=torch.uint8,
            device=context.device,
        )
        self._by_slot = self._records.split(self._groups)
        self._received: list[Sequence[torch.Tensor]] = []
        self._at_once = loops(context.device) is None
        if self._at_once:
            numels = [slot.numel for slot in self.slots]
            self._values, self.means = levels.in_groups(
                numels, self._groups, spec.step_numel, context.device
            )

    def add(
        self,
        index: int,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None = None,
    ) -> None:
        """Round ``gradient`` into the message, or keep it until all are there."""
        if self._at_once:
            self.means[index].copy_(gradient)
            return
        rounding = self._rounding(index)
        records = self._by_slot[index]
        whole, rest = self._in_groups(gradient.float())
        levels.draw(whole, records[: len(whole)], self.spec.bits, rounding)
        if rest.numel():
            last = padded(rest, self.spec.step_numel)[None]
            levels.draw(last, records[-1:], self.spec.bits, rounding)

    def encode(self) -> Message:
        """Return the records."""
        if self._at_once:
            levels.draw(self._values, self._records, self.spec.bits, self._rounding(0))
        return (self._records.view(-1),)

    def decode(self, messages: Sequence[Message]) -> None:
        """Take every rank's message."""
        of_ranks = [records.view_as(self._records) for (records,) in messages]
        if self._at_once:
            levels.read(of_ranks, self._values, self.spec.bits, self._share)
        else:
            self._received = [records.split(self._groups) for records in of_ranks]

    def write(self, index: int, out: torch.Tensor) -> None:
        """Overwrite ``out`` with the mean of the ranks' estimates."""
        if self._at_once:
            super().write(index, out)
            return
        bits = self.spec.bits
        of_ranks = [records[index] for records in self._received]
        with in_float32(out) as mean:
            whole, rest = self._in_groups(mean)
            levels.read(
                [own[: len(whole)] for own in of_ranks], whole, bits, self._share
            )
            if rest.numel():
                last = mean.new_empty(1, self.spec.step_numel)
                levels.read([own[-1:] for own in of_ranks], last, bits, self._share)
                rest.copy_(last[0, : rest.numel()])

    @property
    def _share(self) -> float:
        return 1 / self.context.world_size

    def _rounding(self, index: int) -> StochasticRounding:
        """Return that of what is rounded together, from tensor ``index`` on."""
        key = random_key(self.context.seed, self.step, self.slots[index].name)
        return StochasticRounding(key, self.context.device)

    def _in_groups(self, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the whole groups [n, step_numel] of ``flat``, and the rest [less]."""
        numel = self.spec.step_numel
        whole = flat.numel() // numel * numel
        return flat[:whole].view(-1, numel), flat[whole:]
