"""PowerSGD's spec; the method is :mod:`comm_plan.compressors.powersgd`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import Self

from comm_plan.plans.compression.spec import (
    FACTORS,
    FLOAT32_NBYTES,
    RESIDUAL,
    EveryElement,
    for_each,
    of_more,
    of_some,
)

RANKS = (1, 2, 4, 8, 16)
"""What ``auto`` tries, as far as the largest ratio allows; errors are known of them."""

REFERENCE_WIDTH = 512
"""The ratio of a rank is that of a square matrix so wide: layers differ."""

Rank = Annotated[int, Field(ge=1, le=2**20)]


@dataclass(frozen=True)
class Matrix:
    """A tensor as PowerSGD sees it: its first dimension by all others."""

    rows: int
    columns: int
    rank: int

    @property
    def factors_numel(self) -> int:
        """Elements of both factors."""
        return (self.rows + self.columns) * self.rank


def matrix_of(shape: Sequence[int], rank: int) -> Matrix | None:
    """Return what is sent of a tensor; None: all of it, as factors would not pay.

    They do if both together are less than half of the tensor.
    """
    if len(shape) < 2:
        return None
    matrix = Matrix(shape[0], math.prod(shape[1:]), rank)
    pays = 2 * matrix.factors_numel < matrix.rows * matrix.columns
    return matrix if pays else None


def numel_in_two_steps(shape: Sequence[int], rank: int) -> int:
    """Return the elements sent of a tensor in two steps, a factor in each."""
    matrix = matrix_of(shape, rank)
    return 2 * math.prod(shape) if matrix is None else matrix.factors_numel


class PowerSgd(EveryElement):
    """A factor of a low-rank approximation of every matrix, with error feedback.

    ``rank`` (higher: less compression) is one number for all tensors of the bucket or
    one for each, in the bucket's order. Tensors of one dimension, and matrices that are
    hardly larger than their factors, are sent as they are. ``bytes_of``: the ranks of
    the whole model are to be chosen, or were, so that they leave out least, and send no
    more than this one rank for all.
    """

    kind: Literal["powersgd"] = "powersgd"
    rank: Rank | tuple[Rank, ...] = 2
    bytes_of: Rank | None = None

    methods = {"powersgd": "allreduce"}
    implementation = "powersgd:PowerSgdCompressor"
    on_gpu = "powersgd_at_once:PowerSgdAtOnce"
    dtypes = ("float32", "float16", "bfloat16")
    lossless = False
    carries_nonfinite = False
    keeps_last_layer = False
    by_default = ("powersgd",)
    largest_world_size = {}
    agreed_nbytes = 0

    @property
    def state(self) -> tuple[str, ...]:
        """The residual, and the factors that the next step starts from."""
        return RESIDUAL, FACTORS

    @property
    def ratio(self) -> float:
        """That of a square matrix of 512 rows, at the rank that sends as much.

        Where that is not known at the lowest rank.
        """
        lowest = min(self.rank) if isinstance(self.rank, tuple) else self.rank
        return max(1.0, REFERENCE_WIDTH / (self.bytes_of or lowest))

    def ranks(self, tensors: int) -> tuple[int, ...]:
        """Return the rank of each of the bucket's ``tensors``.

        Raises:
            ValueError: the spec is for another number of tensors.
        """
        return for_each(self.rank, tensors, "ranks")

    def densities(self, tensors: int) -> tuple[float, ...]:
        """Return 1 for each of as many tensors as there are ranks for."""
        return super().densities(len(self.ranks(tensors)))

    def message_nbytes(self, numels: Sequence[int], collective: str) -> int:
        """Return the bytes of tensors of one dimension, which are not compressed."""
        return FLOAT32_NBYTES * sum(numels)

    def planned_nbytes(self, shapes: Sequence[Sequence[int]], collective: str) -> int:
        """Return the mean of two steps, of which each sends one of the factors."""
        ranks = self.ranks(len(shapes))
        both = sum(map(numel_in_two_steps, shapes, ranks))
        return FLOAT32_NBYTES * both // 2

    def restricted_to(self, start: int, stop: int) -> Self:
        """Return the spec with the ranks of tensors ``start..stop``."""
        return self._with(rank=of_some(self.rank, start, stop))

    def placed(self, start: int, tensors: int) -> Self:
        """Return the spec with a rank for every tensor."""
        return self._with(rank=of_more(self.rank, start, tensors, 1))

    def variants(self, max_ratio: float) -> tuple[Self, ...]:
        """Return the ranks whose ratio is allowed."""
        every = (self.model_copy(update={"rank": rank}) for rank in RANKS)
        return tuple(variant for variant in every if variant.ratio <= max_ratio)
