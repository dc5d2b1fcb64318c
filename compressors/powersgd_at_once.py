"""PowerSGD for a GPU: matrices are multiplied, and made orthonormal, many at once.

The method and the bytes are those of :mod:`comm_plan.compressors.powersgd`, in another
order. Matrix by matrix a step takes two products and a QR, which take longer to launch
than to do. Here what is remembered of matrices of one shape lies end to end, and one
product serves all of them; so does what is sent as it is. Factors of as many rows and
columns are orthonormalised together, by Gram and Schmidt's method: from each column
what points along earlier ones is taken off, and what rounding left of that, twice.

Columns may be zero, as after a step without gradients, or parallel, as where a matrix
has a lower rank. So that no direction is given up, all get a little of the random
numbers that the factors started from, less than rounding where anything else is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from comm_plan.compressors.base import FACTORS, RESIDUAL, Context, Message, Slot
from comm_plan.compressors.powersgd import PowerSgdCompressor
from comm_plan.plans.compression import Matrix, PowerSgd

NOISE = 1e-8
"""How much of the random numbers, to a column's largest element."""


@dataclass(frozen=True)
class Alike:
    """Matrices of one shape and rank.

    Attributes:
        slots: which of the bucket they are; g.
        residuals: [g, rows, columns].
        factors: [g, rows, rank] and [g, columns, rank], the left and the right ones.
        start: what the factors were at first.
    """

    slots: Sequence[int]
    residuals: torch.Tensor
    factors: Sequence[torch.Tensor]
    start: Sequence[torch.Tensor]


class PowerSgdAtOnce(PowerSgdCompressor):
    """Sends what :class:`PowerSgdCompressor` sends, matrices of a shape together."""

    def __init__(
        self, spec: PowerSgd, collective: str, slots: Sequence[Slot], context: Context
    ) -> None:
        """Lay what is remembered of matrices of a shape end to end."""
        super().__init__(spec, collective, slots, context)
        of_shape: dict[Matrix | None, list[int]] = {}
        for index, matrix in enumerate(self._matrices):
            of_shape.setdefault(matrix, []).append(index)
        self._as_they_are = of_shape.pop(None, [])
        self._left = self._end_to_end(RESIDUAL, self._as_they_are)
        self._alike = [
            self._laid(matrix, alike)
            for matrix, alike in of_shape.items()
            if matrix is not None
        ]

    def encode(self) -> Message:
        """Return this rank's share of the mean, [n] float32: factors, then the rest."""
        self._is_even = self.step % 2 == 0
        parts = list(map(self._taken, self._alike, self._orthonormal()))
        rest = self._left.clone()
        self._left.zero_()
        self._by_slot(self._sent, self._as_they_are, self._each(rest))
        message = torch.cat([*map(torch.flatten, parts), rest])
        return (message.div_(self.context.world_size),)

    def decode(self, messages: Sequence[Message]) -> None:
        """Take the mean; its factors are what the next step starts from."""
        ((mean,),) = messages
        sent = [alike.factors[self._is_even] for alike in self._alike]
        *parts, rest = mean.split([*map(torch.numel, sent), self._left.numel()])
        self._by_slot(self._means, self._as_they_are, self._each(rest))
        for alike, factors, part in zip(self._alike, sent, parts, strict=True):
            factors.copy_(part.view_as(factors))
            self._by_slot(self._means, alike.slots, part.view_as(factors).unbind())

    def _orthonormal(self) -> list[torch.Tensor]:
        """Return the factors that are known, orthonormalised: [g, n, rank] each."""
        known = not self._is_even
        of_shape: dict[torch.Size, list[int]] = {}
        for number, alike in enumerate(self._alike):
            of_shape.setdefault(alike.factors[known].shape[1:], []).append(number)
        bases = [self._left] * len(self._alike)
        for numbers in of_shape.values():
            together = [self._alike[number] for number in numbers]
            whole = orthonormalised(
                torch.cat([alike.factors[known] for alike in together]),
                torch.cat([alike.start[known] for alike in together]),
            )
            each = whole.split([len(alike.slots) for alike in together])
            self._by_slot(bases, numbers, each)
        return bases

    def _taken(self, alike: Alike, basis: torch.Tensor) -> torch.Tensor:
        """Return what is sent, [g, m, rank], and leave the rest in the residuals."""
        whole = alike.residuals if self._is_even else alike.residuals.mT
        sent = torch.bmm(whole.mT, basis)
        whole.baddbmm_(basis, sent.mT, alpha=-1)
        self._by_slot(self._bases, alike.slots, basis.unbind())
        self._by_slot(self._sent, alike.slots, sent.unbind())
        return sent

    def _laid(self, matrix: Matrix, slots: Sequence[int]) -> Alike:
        """Lay what is remembered of these slots end to end."""
        shape = len(slots), matrix.rows, matrix.columns
        factors = self._end_to_end(FACTORS, slots).view(len(slots), -1)
        left, right = (
            side.unflatten(1, (-1, matrix.rank))
            for side in factors.tensor_split([matrix.rows * matrix.rank], dim=1)
        )
        return Alike(
            slots=slots,
            residuals=self._end_to_end(RESIDUAL, slots).view(shape),
            factors=(left, right),
            start=(left.clone(), right.clone()),
        )

    def _end_to_end(self, quantity: str, slots: Sequence[int]) -> torch.Tensor:
        """Return a quantity of these slots, flat; their state is parts of it."""
        state = self.state[quantity]
        own = [state[index] for index in slots]
        whole = torch.cat(own) if own else self._zeros()[:0]
        self._by_slot(state, slots, whole.split([part.numel() for part in own]))
        return whole

    def _each(self, rest: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the parts of what is sent as it is, by tensor."""
        numels = [self.slots[index].numel for index in self._as_they_are]
        parts: Sequence[torch.Tensor] = rest.split(numels)
        return parts

    @staticmethod
    def _by_slot(
        every: list[torch.Tensor], slots: Sequence[int], some: Sequence[torch.Tensor]
    ) -> None:
        for slot, one in zip(slots, some, strict=True):
            every[slot] = one


def orthonormalised(factors: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Return the columns of each matrix, made orthonormal from the first to the last.

    Args:
        factors: [g, n, r], r at most n.
        start: as many random numbers; equal ones give equal columns.
    """
    largest = factors.abs().amax(dim=1, keepdim=True)
    largest.clamp_min_(torch.finfo(factors.dtype).tiny)
    columns = (factors / largest).split(1, dim=2)
    noise = (NOISE * start).split(1, dim=2)
    bases = torch.empty_like(factors)
    for number, (column, random) in enumerate(zip(columns, noise, strict=True)):
        before = bases[:, :, :number]
        left = _across(before, column) + random
        left = _across(before, _across(before, left))
        norm = torch.linalg.vector_norm(left, dim=1, keepdim=True)
        torch.div(left, norm, out=bases[:, :, number : number + 1])
    return bases


def _across(bases: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return what of ``columns`` [g, n, c] does not point along ``bases`` [g, n, b]."""
    if not bases.shape[2]:
        return columns
    return torch.baddbmm(columns, bases, torch.bmm(bases.mT, columns), alpha=-1)
