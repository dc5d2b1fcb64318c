"""The 32-bit word that VGC, Strom and hybrid send, and what the three share.

One word is one element (VGC paper, section 4.2)::

    bit  31       sign
    bits 30..28   d, the power of two below the largest: 0..7
    bits 27..0    the element's position in the bucket

A message is one int32 tensor. Its length depends on the data and says how many words
there are, so no counts travel; positions run over the whole bucket, so no tensor
boundaries travel either. An element is sent at most once a message.

Differences from the paper: it indexes every tensor by itself and has one message a
tensor; here 2^28 is the limit of a bucket.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import TypeVar

from comm_plan.compressors.base import (
    RESIDUAL,
    Compressor,
    Context,
    Message,
    Slot,
)
from comm_plan.compressors.chunks import in_chunks
from comm_plan.compressors.loops import loops
from comm_plan.errors import MismatchError
from comm_plan.plans.compression import Words

Array: TypeAlias = npt.NDArray[Any]

POSITION_BITS = 28
MAX_NUMEL = 1 << POSITION_BITS
MAX_DISTANCE = 7
SIGN_BIT = -(1 << 31)


def pack(
    position: torch.Tensor, distance: torch.Tensor | int, signed: torch.Tensor
) -> torch.Tensor:
    """Return one int32 word for every element.

    Args:
        position: [k] integers below 2^28.
        distance: [k] int32, or one for all, from 0 to 7.
        signed: [k] float32 of which only the sign bits are used.
    """
    sign = signed.view(torch.int32) & SIGN_BIT
    return position.to(torch.int32) | (distance << POSITION_BITS) | sign


def unpack(words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return positions, distances and sign bits, each [k] int32, of ``words`` [k]."""
    position = words & (MAX_NUMEL - 1)
    distance = (words >> POSITION_BITS) & MAX_DISTANCE
    return position, distance, words & SIGN_BIT


WordsT = TypeVar("WordsT", bound=Words, default=Words, covariant=True)


class WordCompressor(Compressor[WordsT]):
    """What VGC, Strom and hybrid share: residuals, sums and undoing.

    The state of a quantity is one flat tensor for the bucket; ``state`` holds its parts
    as views, so load a checkpoint with ``copy_``.

    These methods choose by significance, not by number: a density floor (warm-up) has
    no meaning for them.

    Raises:
        MismatchError: the bucket has more than 2^28 elements.
    """

    judged_by: tuple[str, ...] = (RESIDUAL,)
    """The quantities of the state that say whether an element is sent."""

    def __init__(
        self, spec: WordsT, collective: str, slots: Sequence[Slot], context: Context
    ) -> None:
        """Start with nothing kept; see :class:`Compressor`."""
        super().__init__(spec, collective, slots, context)
        _check_indexable(spec.kind, self.slots)
        self._numels = [slot.numel for slot in self.slots]
        self._flat: dict[str, torch.Tensor] = {}
        for quantity in self.judged_by:
            self._remember(quantity)
        self._residual = self._flat[RESIDUAL]
        self._sums = self._zeros()
        self._sums_by_slot = torch.split(self._sums, self._numels)
        loops(context.device)  # which may have to be compiled first
        self._before_encode: tuple[torch.Tensor, dict[str, torch.Tensor]] | None = None

    def add(
        self,
        index: int,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None = None,
    ) -> None:
        """Add the gradient, or what momentum makes of it, to the residual."""
        self.state[RESIDUAL][index] += self.accelerated(index, gradient)

    def decode(self, messages: Sequence[Message]) -> None:
        """Sum the elements that the ranks sent, in rank order."""
        self._sums.zero_()
        for message in messages:
            position, value = self._read(message)
            self._sums.index_add_(0, position, value)

    def write(self, index: int, out: torch.Tensor) -> None:
        """Overwrite ``out`` [numel] with the mean over ranks of tensor ``index``."""
        torch.div(self._sums_by_slot[index], self.context.world_size, out=out)

    def undo(self) -> None:
        """Bring the state back to what it was before :meth:`encode`, bit by bit."""
        if self._before_encode is None:
            return
        position, before = self._before_encode
        for quantity, values in before.items():
            self._flat[quantity].index_copy_(0, position, values)
        self._before_encode = None

    @abstractmethod
    def _read(self, message: Message) -> tuple[torch.Tensor, torch.Tensor]:
        """Return positions [k] and float32 values [k] of one rank's message."""

    def _significant(self) -> torch.Tensor:
        """Return the positions of what is to be sent, [k] int64, ascending.

        A CPU judges parts that fit into its cache: what lies between the state and the
        positions would take longer to write and to read than the state itself.
        """
        found, start = [], 0
        judged = (self._flat[quantity] for quantity in self.judged_by)
        compiled = loops(self.context.device)
        for parts in in_chunks(*judged):
            if compiled is None:
                position = self._is_sent(*parts).nonzero().flatten()
            else:
                arrays = [part.numpy() for part in parts]
                scratch = np.empty(len(parts[0]), np.intp)
                position = torch.from_numpy(self._found(compiled, *arrays, scratch))
            found.append(position + start)
            start += len(parts[0])
        return torch.cat(found)

    @abstractmethod
    def _is_sent(self, *judged: torch.Tensor) -> torch.Tensor:
        """Return where to send, from some elements' quantities of ``judged_by``."""

    @abstractmethod
    def _found(self, compiled: Any, *arrays: Array) -> Array:
        """Return the positions by ``compiled`` loops; the last array is for scratch."""

    def _take(
        self, position: torch.Tensor, residual: torch.Tensor, sent: torch.Tensor
    ) -> torch.Tensor:
        """Subtract what is ``sent`` from the residuals, and remember how to undo it.

        Args:
            position: [k].
            residual: [k] what is there.
            sent: [k].

        Returns:
            What is left there, [k].
        """
        others = (name for name in self._flat if name != RESIDUAL)
        before = {name: self._flat[name].index_select(0, position) for name in others}
        self._before_encode = position, {RESIDUAL: residual, **before}
        left = residual - sent
        self._residual.index_copy_(0, position, left)
        return left

    def _remember(self, quantity: str) -> torch.Tensor:
        """Add zeros to the state, also to what can be undone."""
        flat = self._flat[quantity] = super()._remember(quantity)
        return flat


def _check_indexable(kind: str, slots: Sequence[Slot]) -> None:
    for slot, end in zip(slots, accumulate(slot.numel for slot in slots), strict=True):
        if end > MAX_NUMEL:
            raise MismatchError(
                f"tensor {slot.name} ({slot.numel} elements) brings its bucket to "
                f"{end} elements, {kind} can address {MAX_NUMEL}: plan smaller "
                "buckets, or this tensor without compression"
            )
