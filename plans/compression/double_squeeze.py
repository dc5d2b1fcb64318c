"""DoubleSqueeze's spec; the method is :mod:`comm_plan.compressors.double_squeeze`."""

from __future__ import annotations

from typing import Literal

from typing_extensions import Self

from comm_plan.plans.compression.grouped import Grouped
from comm_plan.plans.compression.spec import RESIDUAL


class DoubleSqueeze(Grouped):
    """Nearest levels, of parts and of their sums, with error feedback.

    Fewer levels want smaller groups.
    """

    kind: Literal["double_squeeze"] = "double_squeeze"
    bits: Literal[3, 4, 8] = 4

    default_groups = {3: 256, 4: 512, 8: 512}
    methods = {"doublesqueeze": "two_pass"}
    implementation = "double_squeeze:DoubleSqueezeCompressor"
    by_default = ("doublesqueeze",)

    @property
    def state(self) -> tuple[str, ...]:
        """The residual."""
        return (RESIDUAL,)

    def variants(self, max_ratio: float) -> tuple[Self, ...]:
        """Return all bits whose ratio is allowed."""
        every = (
            self.model_copy(update={"bits": bits})
            for bits in sorted(self.default_groups)
        )
        return tuple(variant for variant in every if variant.ratio <= max_ratio)
