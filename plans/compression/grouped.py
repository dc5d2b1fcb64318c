"""What specs share whose elements are whole multiples of a step, group by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from comm_plan.plans.compression.spec import (
    FLOAT32_NBYTES,
    EveryElement,
    packed_nbytes,
)

MULTIPLE = 32
"""The levels of so many elements fill whole words, whatever their bits."""

GroupNumel = Annotated[int, Field(gt=0, le=2**24, multiple_of=MULTIPLE)]


class Grouped(EveryElement):
    """A method that sends levels of ``bits`` bits, sign included, and steps.

    ``group_numel`` elements of a tensor share a step, None: as many as in
    ``default_groups``; the last group of a tensor may be shorter.
    """

    bits: int
    group_numel: GroupNumel | None = None

    default_groups: ClassVar[Mapping[int, int]]
    """Elements that share one step, by the bits of a level."""

    dtypes = ("float32", "float16", "bfloat16")
    lossless = False
    carries_nonfinite = False
    keeps_last_layer = False
    largest_world_size = {}
    agreed_nbytes = 0

    @property
    def step_numel(self) -> int:
        """Elements that share one step."""
        return self.group_numel or self.default_groups[self.bits]

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
