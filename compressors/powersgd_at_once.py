"""PowerSGD for a GPU: matrices are multiplied, and made orthonormal, many at once.

The method and the bytes are those of :mod:`comm_plan.compressors.powersgd`, in another
order. Matrix by matrix a step takes two products and a QR, which take longer to launch
than to do. Here what is remembered of matrices of one shape lies end to end, and one
product serves all of them; so does what is sent as it is. Factors of about as many rows
are orthonormalised together, by Gram and Schmidt's method: from each column what points
along earlier ones is taken off, and what rounding left of that, twice.

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

MAGNITUDE = 4
"""Factors are filled up to as many rows: of numbers with as many binary digits, or up
to three more."""


@dataclass(frozen=True)
class Alike:
    """Matrices of one shape and rank.

    Attributes:
        slots: which of the bucket they are; g.
        residuals: [g, rows, columns].
        factors: [g, rows, rank] and [g, columns, rank], the left and the right ones.
    """

    slots: Sequence[int]
    residuals: torch.Tensor
    factors: Sequence[torch.Tensor]


class Together:
    """Factors of one side, one rank and about as many rows, which become bases.

    Args:
        factors: [g, n, rank] of each shape, as they are at first.
    """

    def __init__(self, factors: Sequence[torch.Tensor]) -> None:
        self._sizes = [(len(of_shape), of_shape.shape[1]) for of_shape in factors]
        most_rows = max(rows for _, rows in self._sizes)
        shape = sum(g for g, _ in self._sizes), most_rows, factors[0].shape[2]
        self._columns = factors[0].new_zeros(shape)
        self._places = self._of_shapes(self._columns)
        torch._foreach_copy_(self._places, list(factors))
        self._noise = NOISE * self._columns

    def bases(self, factors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return ``factors``, as many as at first, with orthonormal columns."""
        torch._foreach_copy_(self._places, list(factors))
        return self._of_shapes(orthonormalised(self._columns, self._noise))

    def _of_shapes(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """Return the part of each shape; behind shorter ones there are zeros."""
        parts = whole.split([g for g, _ in self._sizes])
        return [
            part[:, :rows] for part, (_, rows) in zip(parts, self._sizes, strict=True)
        ]


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
        self._together = [self._grouped(side) for side in (0, 1)]

    def add_together(self, gradients: torch.Tensor) -> None:
        """Add the gradients to the residuals."""
        parts = gradients.split([slot.numel for slot in self.slots])
        torch._foreach_add_(self.state[RESIDUAL], list(parts))

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
        bases = [self._left] * len(self._alike)
        for numbers, together in self._together[known]:
            factors = [self._alike[number].factors[known] for number in numbers]
            self._by_slot(bases, numbers, together.bases(factors))
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
        residuals = self._end_to_end(RESIDUAL, slots)
        factors = self._end_to_end(FACTORS, slots).view(len(slots), -1)
        sides = factors.tensor_split([matrix.rows * matrix.rank], dim=1)
        return Alike(
            slots,
            residuals.view(len(slots), matrix.rows, matrix.columns),
            [side.unflatten(1, (-1, matrix.rank)) for side in sides],
        )

    def _grouped(self, side: int) -> list[tuple[list[int], Together]]:
        """Return which shapes' factors of a side are orthonormalised together."""
        groups: dict[tuple[int, int], list[int]] = {}
        for number, alike in enumerate(self._alike):
            _, rows, rank = alike.factors[side].shape
            about = rows.bit_length() // MAGNITUDE
            groups.setdefault((rank, about), []).append(number)
        of_shapes = [alike.factors[side] for alike in self._alike]
        return [
            (numbers, Together([of_shapes[number] for number in numbers]))
            for numbers in groups.values()
        ]

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


def orthonormalised(columns: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Return the columns of each matrix, made orthonormal from the first to the last.

    Args:
        columns: [g, n, r], r at most n.
        noise: as many random numbers, about :data:`NOISE`; what is zero in both stays
            so. Equal arguments give equal results.
    """
    largest = columns.abs().amax(dim=1, keepdim=True)
    largest.clamp_min_(torch.finfo(columns.dtype).tiny)
    scaled = (columns / largest).split(1, dim=2)
    bases = torch.empty_like(columns)
    for number, (column, random) in enumerate(
        zip(scaled, noise.split(1, dim=2), strict=True)
    ):
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
