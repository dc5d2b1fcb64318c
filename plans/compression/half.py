"""Sixteen bits an element: cast, reduce, cast back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from comm_plan.plans.compression.spec import EveryElement


class Half(EveryElement):
    """What the two formats share."""

    implementation = "half:HalfCompressor"
    dtypes = ("float32", "float16", "bfloat16")
    lossless = False
    carries_nonfinite = True
    keeps_last_layer = False
    largest_world_size = {}
    agreed_nbytes = 0

    summed: ClassVar[str]
    """The format, as torch calls it."""

    @property
    def ratio(self) -> float:
        """32 bits over 16."""
        return 2.0

    def message_nbytes(self, numels: Sequence[int], collective: str) -> int:
        """Return two bytes an element."""
        return 2 * sum(numels)

    def summed_as(self, dtype: str, collective: str) -> str:
        """Return the format."""
        return self.summed


class Fp16(Half):
    """Cast to IEEE half precision, reduce, cast back."""

    kind: Literal["fp16"] = "fp16"

    summed = "float16"

    methods = {"fp16": "allreduce"}
    by_default = ("fp16",)


class Bf16(Half):
    """Cast to bfloat16, reduce, cast back."""

    kind: Literal["bf16"] = "bf16"

    summed = "bfloat16"

    methods = {"bf16": "allreduce"}
    by_default = ("bf16",)
