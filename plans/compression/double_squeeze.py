"""DoubleSqueeze's spec; the method is :mod:`comm_plan.compressors.double_squeeze`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import Self

from comm_plan.plans.compression.spec import (
    FLOAT32_NBYTES,
    RESIDUAL,
    EveryElement,
    packed_nbytes,
)

GROUPS = {3: 256, 4: 512, 8: 512}
"""Elements that share one step, by bits a level: fewer levels want smaller groups."""

_MULTIPLE = 32  # the levels of a group fill whole words, whatever the bits


class DoubleSqueeze(EveryElement):
    """Nearest levels, of parts and of their sums, with error feedback.

    ``bits`` (higher: less compression) of a level, sign included; ``group_numel``
    elements of a tensor share a step, None: as many as in :data:`GROUPS`.
    """

    kind: Literal["double_squeeze"] = "double_squeeze"
    bits: Literal[3, 4, 8] = 4
    group_numel: Annotated[int, Field(gt=0, multiple_of=_MULTIPLE)] | None = None

    methods = {"doublesqueeze": "two_pass"}
    implementation = "double_squeeze:DoubleSqueezeCompressor"
    dtypes = ("float32", "float16", "bfloat16")
    lossless = False
    carries_nonfinite = False
    keeps_last_layer = False
    by_default = ("doublesqueeze",)
    largest_world_size = {}
    agreed_nbytes = 0

    @property
    def state(self) -> tuple[str, ...]:
        """The residual."""
        return (RESIDUAL,)

    @property
    def step_numel(self) -> int:
        """Elements that share one step."""
        return self.group_numel or GROUPS[self.bits]

    @property
    def record_nbytes(self) -> int:
        """Bytes of a group: its levels and a float32 step."""
        return packed_nbytes(self.step_numel, self.bits) + FLOAT32_NBYTES

    @property
    def ratio(self) -> float:
        """32 bits over those of a level."""
        return 32 / self.bits

    def groups(self, numel: int) -> int:
        """Return into how many groups a tensor is cut; the last may be short of one."""
        return -(-numel // self.step_numel)

    def message_nbytes(self, numels: Sequence[int], collective: str) -> int:
        """Return the bytes of all groups, of which each belongs to one tensor."""
        return self.record_nbytes * sum(map(self.groups, numels))

    def variants(self, max_ratio: float) -> tuple[Self, ...]:
        """Return all bits whose ratio is allowed."""
        every = (self.model_copy(update={"bits": bits}) for bits in sorted(GROUPS))
        return tuple(variant for variant in every if variant.ratio <= max_ratio)
