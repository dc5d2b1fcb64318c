"""How a bucket is compressed: one spec per method, with its exact wire bytes.

A spec is the ``compressor`` of a bucket in a plan. It is data, importable without
PyTorch; the method itself is the module of the same name in ``comm_plan.compressors``.

``message_nbytes(numels)`` is the size of the message that one rank contributes for a
bucket whose tensors have those numbers of elements; for methods whose length depends
on the data it is the expectation at the spec's ``expected_density``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from comm_plan.plans.document import Value

FLOAT32_NBYTES = 4
INDEX_NBYTES = 4

Density = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def selected(numel: int, density: float) -> int:
    """Return how many of ``numel`` elements a density selects: at least one."""
    return min(numel, max(1, round(numel * density)))


class Dense(Value):
    """No compression: the gradients as they are."""

    kind: Literal["dense"] = "dense"

    def message_nbytes(self, numels: Sequence[int]) -> int:
        """Return the wire bytes of float32 gradients."""
        return FLOAT32_NBYTES * sum(numels)


class Fp16(Value):
    """Cast to IEEE half precision, reduce, cast back."""

    kind: Literal["fp16"] = "fp16"

    def message_nbytes(self, numels: Sequence[int]) -> int:
        """Return two bytes an element."""
        return 2 * sum(numels)


class Bf16(Value):
    """Cast to bfloat16, reduce, cast back."""

    kind: Literal["bf16"] = "bf16"

    def message_nbytes(self, numels: Sequence[int]) -> int:
        """Return two bytes an element."""
        return 2 * sum(numels)


class TernGrad(Value):
    """Signs and zeros with one shared scaler a tensor (TernGrad)."""

    kind: Literal["terngrad"] = "terngrad"
    clip: Annotated[float, Field(ge=0)] = 2.5  # times sigma; 0: do not clip

    def message_nbytes(self, numels: Sequence[int]) -> int:
        """Return the bytes of the trits, five a byte and tensor by tensor."""
        return sum(math.ceil(numel / 5) for numel in numels)


class TopK(Value):
    """The largest elements of each tensor by magnitude, with error feedback.

    ``density`` (k / numel; lower: more compression) is one number for all tensors of
    the bucket or one for each, in the bucket's order.
    """

    kind: Literal["topk"] = "topk"
    density: Density | tuple[Density, ...]
    momentum_correction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    clip_norm: Positive | None = None

    def densities(self, tensors: int) -> tuple[float, ...]:
        """Return one density for each of the bucket's ``tensors``."""
        if isinstance(self.density, tuple):
            return self.density
        return (self.density,) * tensors

    def message_nbytes(self, numels: Sequence[int]) -> int:
        """Return k float32 values and k int32 indices for every tensor."""
        densities = self.densities(len(numels))
        k = sum(selected(n, d) for n, d in zip(numels, densities, strict=True))
        return (FLOAT32_NBYTES + INDEX_NBYTES) * k


class Variable(Value):
    """A method whose message length depends on the data."""

    expected_density: Density = 0.01

    def message_nbytes(self, numels: Sequence[int]) -> int:
        """Return one 32-bit word per element expected to be sent."""
        return 4 * sum(selected(numel, self.expected_density) for numel in numels)


class Vgc(Variable):
    """Variance-based: send an element once its mean outweighs its variance."""

    kind: Literal["vgc"] = "vgc"
    alpha: Positive = 1.5  # higher: more compression
    zeta: Annotated[float, Field(gt=0, le=1)] = 0.999

    def message_nbytes(self, numels: Sequence[int]) -> int:
        """Return the words and one exponent byte a tensor, padded to a word."""
        exponents = 4 * math.ceil(len(numels) / 4)
        return exponents + super().message_nbytes(numels)


class Strom(Variable):
    """Send sign * tau where the residual exceeds tau."""

    kind: Literal["strom"] = "strom"
    tau: Positive  # higher: more compression


class Hybrid(Variable):
    """Variance-based and Strom together: both conditions must hold."""

    kind: Literal["hybrid"] = "hybrid"
    tau: Positive
    alpha: Positive = 1.5
    zeta: Annotated[float, Field(gt=0, le=1)] = 0.999


QSGD_GROUPS = {2: 128, 3: 512, 4: 512}
"""Elements that share one norm, by bits a level (VGC paper, section 6)."""


class Qsgd(Value):
    """Stochastic levels of ``bits`` bits, sign included, with one norm per group."""

    kind: Literal["qsgd"] = "qsgd"
    bits: Literal[2, 3, 4] = 4

    @property
    def group_numel(self) -> int:
        """Elements that share one norm."""
        return QSGD_GROUPS[self.bits]

    def message_nbytes(self, numels: Sequence[int]) -> int:
        """Return the packed levels and a float32 norm per group, tensor by tensor."""
        return sum(
            math.ceil(n * self.bits / 8)
            + FLOAT32_NBYTES * math.ceil(n / self.group_numel)
            for n in numels
        )


CompressorSpec = Annotated[
    Dense | Fp16 | Bf16 | TernGrad | TopK | Vgc | Strom | Hybrid | Qsgd,
    Field(discriminator="kind"),
]

COLLECTIVES_OF = {
    "dense": ("allreduce",),
    "fp16": ("allreduce",),
    "bf16": ("allreduce",),
    "terngrad": ("allgather", "allreduce"),
    "topk": ("allgather", "gtopk"),
    "vgc": ("allgather",),
    "strom": ("allgather",),
    "hybrid": ("allgather",),
    "qsgd": ("allgather",),
}
"""Which collectives can carry each kind; the first is the default."""
