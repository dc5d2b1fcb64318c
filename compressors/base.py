"""What every compressor does for one bucket.

The life of a bucket in one step::

    add(i, gradient)        each tensor as soon as its gradient is ready, or on a GPU
    add_together(gradients) all of them once the last is
    agree(ranks)            what ranks must share before encoding: scalers, indices
    encode() -> message     flat tensors, this rank's contribution
    ... an aggregation of comm_plan.collectives moves and combines messages ...
    decode(messages)        a list of one summed message, or one message from every rank
    write(i, out)           the mean over ranks of tensor i

Which thread calls, and on CUDA on which stream:

``add``, or ``add_together`` of all
    The autograd thread, inside the hook of the gradient or of the bucket's last, on the
    stream of backward; for a parameter without a gradient the thread that ends the
    step.
``agree``, ``encode``, ``decode``, ``put_back``, the first ``write``
    The communication thread, on its own stream, which first waits for an event of the
    stream on which the last ``add`` was queued; on the CPU also the thread that waits
    for the exchange.
``undo``, ``state``, any other ``write``
    The training thread, between steps, after all exchanges of the step have ended.

So no two calls overlap and none needs a lock, but a method must not assume that it runs
on the thread or the stream of another.

Whatever a compressor remembers from step to step is kept per tensor in ``state``, so
that a checkpoint, or another plan, can carry it on by parameter name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

import torch
from typing_extensions import TypeVar

from comm_plan.compressors.momentum import Momentum
from comm_plan.plans.compression.spec import (
    FACTORS,
    RESIDUAL,
    VARIANCE,
    VELOCITY,
    Spec,
)
from comm_plan.transports.message import Message

if TYPE_CHECKING:
    from comm_plan.transports.base import Transport

__all__ = [
    "FACTORS",
    "RESIDUAL",
    "VARIANCE",
    "VELOCITY",
    "Compressor",
    "Context",
    "Message",
    "Slot",
    "in_float32",
]

SpecT = TypeVar("SpecT", bound=Spec, default=Spec, covariant=True)


@dataclass(frozen=True)
class Slot:
    """A tensor's place in a bucket.

    ``shape`` is empty where nobody needs to know it.
    """

    name: str
    numel: int
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Context:
    """What a compressor may know of the run.

    ``seed`` differs from rank to rank; random numbers of a step come from
    ``(seed, step, slot)`` alone, the slot being the first of what is rounded together,
    so that a resumed run draws the same. ``momentum_of``
    a tensor is what a sparse compressor applies to its gradient; None: the optimizer
    does, to the mean.
    """

    world_size: int
    rank: int
    device: torch.device
    seed: int = 0
    momentum_of: Callable[[str], Momentum] | None = None


@contextmanager
def in_float32(out: torch.Tensor) -> Iterator[torch.Tensor]:
    """Lend ``out``, or, where it is of another dtype, what is copied to it."""
    if out.dtype == torch.float32:
        yield out
        return
    lent = torch.empty_like(out, dtype=torch.float32)
    yield lent
    out.copy_(lent)


class Compressor(ABC, Generic[SpecT]):
    """Compresses the gradients of one bucket.

    Args:
        spec: the bucket's spec in the plan.
        collective: the bucket's collective: TernGrad sends int8 to be summed by
            ``allreduce`` and packed trits by ``allgather``.
        slots: the bucket's tensors, in order.
        context: the run.

    Attributes:
        state: for every remembered quantity one flat float32 tensor per slot.
        step: number of the current step, from 0; the engine sets it.
        density_floor: sparse methods send at least this share of a tensor; the engine
            raises it during density warm-up.
        scale: of the loss, and so of gradients; the engine sets it. What a spec says of
            their size is of those without.
    """

    def __init__(
        self, spec: SpecT, collective: str, slots: Sequence[Slot], context: Context
    ) -> None:
        self.spec = spec
        self.collective = collective
        self.slots = tuple(slots)
        self.context = context
        self.state: dict[str, list[torch.Tensor]] = {}
        self.step = 0
        self.density_floor = 0.0
        self.scale = 1.0

    means: Sequence[torch.Tensor] = ()
    """Those of all tensors, flat, once messages are decoded; empty: none lies ready,
    :meth:`write` makes each."""

    takes_rows = False
    """Whether :meth:`add` also takes sparse gradients, and :meth:`sparse_mean` gives
    their means."""

    @property
    def carries_nonfinite(self) -> bool:
        """Whether messages are summed as plain numbers: inf or NaN reaches all."""
        return self.spec.carries_nonfinite

    @property
    def needs_second_moments(self) -> bool:
        """Whether :meth:`add` wants the per-sample second moments (VGC)."""
        return self.spec.needs_second_moments

    @property
    def variable_length(self) -> bool:
        """Whether the lengths of a message's tensors depend on the data of the rank."""
        return self.spec.variable_length

    def view(self, index: int) -> torch.Tensor | None:
        """Return the part of the bucket in which the gradient of a tensor may live.

        The mean is there once messages are decoded. None: the compressor keeps no such
        place for tensor ``index``.
        """
        return None

    def accelerated(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        """Return the step that momentum makes of the gradient of tensor ``index``.

        The gradient itself where the compressor keeps no velocity.
        """
        if VELOCITY not in self.state or self.context.momentum_of is None:
            return gradient
        momentum = self.context.momentum_of(self.slots[index].name)
        return momentum.accelerate(self.state[VELOCITY][index], gradient)

    @abstractmethod
    def add(
        self,
        index: int,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None = None,
    ) -> None:
        """Take the gradient of tensor ``index``; it is only read.

        Args:
            index: which slot.
            gradient: [numel], flat; the mean over this rank's samples.
            second_moment: [numel], ``sum_z (g_z / |B|)^2`` over this rank's samples z;
                given if ``needs_second_moments``.
        """

    @property
    def takes_together(self) -> bool:
        """Whether gradients wait for the bucket's last one, for :meth:`add_together`.

        On a GPU: to launch an operation takes longer than what it does to a gradient.
        """
        return self.context.device.type == "cuda" and may_take_together(self)

    def add_together(self, gradients: torch.Tensor) -> None:
        """Take the gradients of all tensors at once; they are only read.

        Args:
            gradients: [sum of numels], flat, end to end.
        """
        parts = gradients.split([slot.numel for slot in self.slots])
        for index, gradient in enumerate(parts):
            self.add(index, gradient)

    def agree(self, ranks: Transport) -> None:
        """Share what must be equal on all ranks.

        Args:
            ranks: for collective calls; every rank makes the same.
        """

    @abstractmethod
    def encode(self) -> Message:
        """Return this rank's contribution."""

    @abstractmethod
    def decode(self, messages: Sequence[Message]) -> None:
        """Take the summed message (one) or every rank's message, by rank."""

    def write(self, index: int, out: torch.Tensor) -> None:
        """Overwrite ``out`` [numel] with the mean over ranks of tensor ``index``."""
        out.copy_(self.means[index])

    def is_finite(self) -> bool:
        """Return whether no mean holds inf or NaN, if it ``carries_nonfinite``.

        Equal on all ranks. Without ``carries_nonfinite`` there is nothing to look at.
        """
        return True

    def sparse_mean(self, index: int) -> torch.Tensor:
        """Return the mean of tensor ``index``, sparse, if it takes rows."""
        raise NotImplementedError

    def undo(self) -> None:
        """Take back what :meth:`encode` sent: the step is skipped on all ranks."""

    def _remember(self, quantity: str) -> torch.Tensor:
        """Add zeros to the state; return them flat, for the whole bucket."""
        flat = self._zeros()
        self.state[quantity] = list(flat.split([slot.numel for slot in self.slots]))
        return flat

    def _zeros(self) -> torch.Tensor:
        """Return zeros for the whole bucket, [numel of all slots] float32."""
        numel = sum(slot.numel for slot in self.slots)
        return torch.zeros(numel, dtype=torch.float32, device=self.context.device)

    def _zeros_by_slot(self) -> list[torch.Tensor]:
        """Return zeros of each slot's own, [numel] float32 each."""
        device = self.context.device
        return [
            torch.zeros(slot.numel, dtype=torch.float32, device=device)
            for slot in self.slots
        ]


def may_take_together(compressor: Compressor) -> bool:
    """Return whether nothing comes with a gradient that is of its tensor alone."""
    return not (compressor.needs_second_moments or compressor.takes_rows)
