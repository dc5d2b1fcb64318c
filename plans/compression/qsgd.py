"""QSGD's spec; the method is :mod:`comm_plan.compressors.qsgd`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from comm_plan.plans.compression.spec import FLOAT32_NBYTES, EveryElement, packed_nbytes

QSGD_GROUPS = {2: 128, 3: 512, 4: 512}
"""Elements that share one norm, by bits a level (VGC paper, section 6)."""


class Qsgd(EveryElement):
    """Stochastic levels of ``bits`` bits, sign included, with one norm per group."""

    kind: Literal["qsgd"] = "qsgd"
    bits: Literal[2, 3, 4] = 4
    group_numel: Annotated[int, Field(gt=0)] | None = None  # d; None: as published

    methods = {"qsgd": "allgather"}
    implementation = "qsgd:QsgdCompressor"
    dtypes = ("float32", "float16", "bfloat16")
    lossless = False
    carries_nonfinite = False
    keeps_last_layer = False
    by_default = ("qsgd",)
    largest_world_size = {}
    agreed_nbytes = 0

    @property
    def norm_numel(self) -> int:
        """Elements that share one norm."""
        return self.group_numel or QSGD_GROUPS[self.bits]

    @property
    def ratio(self) -> float:
        """32 bits over those of a level."""
        return 32 / self.bits

    def message_nbytes(self, numels: Sequence[int], collective: str) -> int:
        """Return the packed levels and a float32 norm per group, tensor by tensor."""
        return sum(
            packed_nbytes(n, self.bits)
            + FLOAT32_NBYTES * math.ceil(n / self.norm_numel)
            for n in numels
        )
