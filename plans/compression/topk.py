"""Specs of methods that send the largest elements and keep the rest.

The methods are :mod:`~comm_plan.compressors.topk`,
:mod:`~comm_plan.compressors.model_topk`,
:mod:`~comm_plan.compressors.partition_topk` and
:mod:`~comm_plan.compressors.spardl`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from typing_extensions import Self

from comm_plan.plans.compression.spec import (
    FLOAT32_NBYTES,
    INDEX_NBYTES,
    RESIDUAL,
    Density,
    Positive,
    Spec,
    for_each,
    of_more,
    of_some,
    selected,
)

RATIOS = (10, 32, 100, 316, 1000)
"""What ``auto`` tries, up to the largest ratio that is allowed, which it tries too."""


class _Largest(Spec):
    """What all have in common: the largest magnitudes go, the rest stays."""

    density: Density | tuple[Density, ...]
    clip_norm: Positive | None = None

    dtypes = ("float32", "float16", "bfloat16")
    lossless = False
    sparse = True
    carries_nonfinite = False
    needs_second_moments = False
    variable_length = False
    keeps_last_layer = False
    largest_world_size = {}
    agreed_nbytes = 0

    @classmethod
    def example(cls) -> Self:
        """Return a density of 1 %."""
        return cls.model_validate({"density": 0.01})

    @classmethod
    def at_density(cls, density: float) -> Self:
        """Return this density."""
        return cls.model_validate({"density": density})

    def second_moment_at(self, density: float) -> None:
        """Return None: it wants no second moments."""

    @property
    def state(self) -> tuple[str, ...]:
        """The residual."""
        return (RESIDUAL,)

    def variants(self, max_ratio: float) -> tuple[Self, ...]:
        """Return a grid of densities, down to the largest ratio allowed."""
        ratios = sorted({min(ratio, max_ratio) for ratio in (*RATIOS, max_ratio)})
        return tuple(self.model_copy(update={"density": 1 / ratio}) for ratio in ratios)


class TopK(_Largest):
    """The largest elements of each tensor by magnitude, with error feedback.

    ``density`` (k / numel; lower: more compression) is one number for all tensors of
    the bucket or one for each, in the bucket's order.
    """

    kind: Literal["topk"] = "topk"
    as_printed: bool = False  # by gtopk: put back as its paper prints, which loses

    selects_by_tensor = True
    methods = {"topk": "allgather", "gtopk": "gtopk"}
    implementation = "topk:TopKCompressor"
    on_gpu = "topk_at_once:TopKAtOnce"
    by_default = ("topk", "gtopk")

    @property
    def ratio(self) -> float:
        """1 over the smallest density."""
        given = self.density
        return 1 / (min(given) if isinstance(given, tuple) else given)

    def message_nbytes(self, numels: Sequence[int], collective: str) -> int:
        """Return k float32 values and k int32 indices for every tensor."""
        densities = self.densities(len(numels))
        k = sum(selected(n, d) for n, d in zip(numels, densities, strict=True))
        return (FLOAT32_NBYTES + INDEX_NBYTES) * k

    def densities(self, tensors: int) -> tuple[float, ...]:
        """Return one density for each of the bucket's ``tensors``."""
        return for_each(self.density, tensors, "densities")

    def fitted(self, shapes: Sequence[Sequence[int]]) -> Self:
        """Return the spec with tensors of one dimension whole.

        Biases and norms are small, and suffer most from what comes late (Deep Gradient
        Compression leaves them out).
        """
        if isinstance(self.density, tuple) or all(len(shape) > 1 for shape in shapes):
            return self
        density = tuple(1.0 if len(shape) < 2 else self.density for shape in shapes)
        return self.model_copy(update={"density": density})

    def restricted_to(self, start: int, stop: int) -> Self:
        """Return the spec with the densities of tensors ``start..stop``."""
        return self._with(density=of_some(self.density, start, stop))

    def placed(self, start: int, tensors: int) -> Self:
        """Return the spec with a density for every tensor."""
        return self._with(density=of_more(self.density, start, tensors, 1.0))


class _LargestOfBucket(_Largest):
    """One density for the bucket, whose tensors are one vector."""

    density: Density

    selects_by_tensor = False

    @property
    def ratio(self) -> float:
        """1 over the density."""
        return 1 / self.density

    def message_nbytes(self, numels: Sequence[int], collective: str) -> int:
        """Return k float32 values and k int32 indices for all tensors together."""
        return (FLOAT32_NBYTES + INDEX_NBYTES) * selected(sum(numels), self.density)

    def densities(self, tensors: int) -> tuple[float, ...]:
        """Return the same density for each of the bucket's ``tensors``."""
        return (self.density,) * tensors


class ModelTopK(_LargestOfBucket):
    """The largest elements of the whole bucket by magnitude, with error feedback.

    In a plan of one bucket (solvers ``single`` and ``slgs``), of the whole model, as
    SLGS, gTop-k and top-k select in their papers. ``density`` is k / numel of the
    bucket; a tensor of small gradients may send nothing for long.
    """

    kind: Literal["model_topk"] = "model_topk"
    as_printed: bool = False  # by gtopk: put back as its paper prints, which loses

    methods = {"model-topk": "allgather", "model-gtopk": "gtopk"}
    implementation = "model_topk:ModelTopKCompressor"
    by_default = ()


class PartitionTopK(_LargestOfBucket):
    """All ranks send the same elements, of which each rank chooses its share in turn.

    The bucket is cut into a part for every rank. A rank chooses the largest elements of
    its part, by its own residual; the ranks gather these indices, and an all-reduce
    sums what they have there. ``density`` is k / numel of the bucket.
    """

    kind: Literal["partition_topk"] = "partition_topk"

    methods = {"partition-topk": "allreduce"}
    implementation = "partition_topk:PartitionTopKCompressor"
    by_default = ()  # loses accuracy where ranks hold different data

    def share_encoded(self, world_size: int) -> float:
        """Return a rank's own part, which is all that it looks through."""
        return 1 / world_size

    def message_nbytes(self, numels: Sequence[int], collective: str) -> int:
        """Return k float32 values."""
        return FLOAT32_NBYTES * selected(sum(numels), self.density)

    def gathered_nbytes(self, numels: Sequence[int]) -> int:
        """Return k int32 indices."""
        return INDEX_NBYTES * selected(sum(numels), self.density)


class SparDL(_LargestOfBucket):
    """The largest elements of each of P blocks, reduced and cut on the way.

    ``density`` is k / numel of the bucket, of what a rank sends and of the result.
    """

    kind: Literal["spardl"] = "spardl"

    methods = {"spardl": "spardl"}
    implementation = "spardl:SparDLCompressor"
    by_default = ("spardl",)
