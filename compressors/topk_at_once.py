"""Top-k for a GPU: the small tensors of a bucket are selected from at once.

The method and the bytes are those of :mod:`comm_plan.compressors.topk`. Tensor by
tensor a selection takes a dozen operations, each of which takes longer to launch than
to do. Here neighbours below :data:`~comm_plan.compressors.selection.SMALL_ON_GPU`
elements, and not more than that together, are a *run*, whose residuals lie end to end:
gradients are added as they arrive, and one sort selects from all of the run when the
bucket is complete. Larger tensors are selected from one by one, as they arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from comm_plan.compressors.base import RESIDUAL, VELOCITY, Context, Message, Slot
from comm_plan.compressors.momentum import Momentum, mask
from comm_plan.compressors.selection import SMALL_ON_GPU, Stretches
from comm_plan.compressors.topk import TopKCompressor
from comm_plan.plans.compression import TopK

STEP = "step"
"""What was added to the residual: with a velocity, it is asked for once more."""


@dataclass
class Run:
    """Neighbours that are selected from together.

    Attributes:
        slots: which of the bucket.
        whole: of every quantity of their state, and of :data:`STEP` where there is a
            velocity, theirs end to end: [n] float32.
        stretches: what is to be selected, once that is known.
    """

    slots: slice
    whole: dict[str, torch.Tensor]
    stretches: Stretches | None = field(default=None, init=False)


class TopKAtOnce(TopKCompressor):
    """Sends what :class:`TopKCompressor` sends."""

    def __init__(
        self, spec: TopK, collective: str, slots: Sequence[Slot], context: Context
    ) -> None:
        """Lay the residuals of small tensors end to end."""
        super().__init__(spec, collective, slots, context)
        self._numels = [slot.numel for slot in self.slots]
        self._steps: dict[int, torch.Tensor | None] = {}  # of all that are in runs
        self._runs = [self._run(slots) for slots in runs_of(self._numels)]

    def add(
        self,
        index: int,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None = None,
    ) -> None:
        """Accumulate ``gradient``; from a large one, select."""
        if index not in self._steps:
            super().add(index, gradient, second_moment)
            return
        step = self._step_of(index, gradient)
        self.state[RESIDUAL][index] += step
        kept = self._steps[index]
        if kept is not None:
            kept.copy_(step)

    def add_together(self, gradients: torch.Tensor) -> None:
        """Accumulate all; from large ones, select."""
        parts = gradients.split(self._numels)
        for index, gradient in enumerate(parts):
            if index not in self._steps:
                super().add(index, gradient)
        for run in self._runs:
            momentum = self._momentum_of(run)
            if self.spec.clip_norm is None and momentum is not None:
                self._fit_message()
                start = sum(self._numels[: run.slots.start])
                own = gradients.narrow(0, start, len(run.whole[RESIDUAL]))
                self._accumulate(run, own, momentum)
            else:
                for index in range(run.slots.start, run.slots.stop):
                    self.add(index, parts[index])

    def encode(self) -> Message:
        """Select from the small ones; return (values, indices), by tensor."""
        for run in self._runs:
            self._select(run)
        return super().encode()

    def decode(self, messages: Sequence[Message]) -> None:
        """Add up the messages: every rank's, or what a ``gtopk`` tree returned."""
        super().decode(messages)
        share = 1.0 / self.context.world_size
        mean = self._zeros()
        for values, indices in messages:
            mean.index_add_(0, self._bucket.across(indices), values, alpha=share)
        self.means = mean.split(self._numels)

    def write(self, index: int, out: torch.Tensor) -> None:
        """Overwrite ``out`` with its part of the means."""
        out.copy_(self.means[index])

    def _fit_message(self) -> None:
        """Say anew what is to be selected where a density warm-up changed the ks."""
        before = self._ks
        super()._fit_message()
        if self._ks is before:
            return
        device = self.context.device
        self._bucket = Stretches(self._numels, self._ks, device)
        for run in self._runs:
            numels, ks = self._numels[run.slots], self._ks[run.slots]
            run.stretches = Stretches(numels, ks, device)

    def _momentum_of(self, run: Run) -> Momentum | None:
        """Return the momentum of all of the run; None: not all have the same."""
        if VELOCITY not in run.whole or self.context.momentum_of is None:
            return Momentum()
        names = [slot.name for slot in self.slots[run.slots]]
        first, *others = set(map(self.context.momentum_of, names))
        return None if others else first

    def _accumulate(self, run: Run, gradient: torch.Tensor, momentum: Momentum) -> None:
        """Add the gradients of a run, end to end, or what momentum makes of them."""
        step = gradient
        if VELOCITY in run.whole:
            step = momentum.accelerate(run.whole[VELOCITY], gradient)
            run.whole[STEP].copy_(step)
        run.whole[RESIDUAL] += step

    def _select(self, run: Run) -> None:
        assert run.stretches is not None
        values, chosen = run.stretches.take(run.whole[RESIDUAL])
        if VELOCITY in run.whole:
            mask(run.whole[VELOCITY], run.whole[STEP], values, chosen)
        start = self._segments[run.slots.start].start
        for sent, own in zip(
            self._sent, (values, run.stretches.within(chosen)), strict=True
        ):
            sent[start : start + len(own)] = own

    def _run(self, slots: slice) -> Run:
        """Return the run of these slots, and let their state be parts of it."""
        whole = {name: torch.cat(parts[slots]) for name, parts in self.state.items()}
        numels = self._numels[slots]
        for name, of_slots in self.state.items():
            of_slots[slots] = whole[name].split(numels)
        steps: Sequence[torch.Tensor | None] = [None] * len(numels)
        if VELOCITY in whole:
            whole[STEP] = torch.zeros_like(whole[VELOCITY])
            steps = whole[STEP].split(numels)
        self._steps.update(enumerate(steps, slots.start))
        return Run(slots, whole)


def runs_of(numels: Sequence[int], most: int = SMALL_ON_GPU) -> list[slice]:
    """Return where neighbours are that have fewer than ``most`` elements together."""
    runs: list[slice] = []
    total = most
    for index, numel in enumerate(numels):
        if numel >= most:
            total = most
        elif total + numel < most:
            total += numel
            runs[-1] = slice(runs[-1].start, index + 1)
        else:
            total = numel
            runs.append(slice(index, index + 1))
    return runs
