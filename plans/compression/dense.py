"""No compression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from comm_plan.plans.compression.spec import FLOAT32_NBYTES, EveryElement


class Dense(EveryElement):
    """No compression: the gradients as they are."""

    kind: Literal["dense"] = "dense"

    methods = {"dense": "allreduce"}
    implementation = "dense:DenseCompressor"
    dtypes = (
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "complex64",
        "complex128",
    )
    lossless = True
    carries_nonfinite = True
    keeps_last_layer = False
    by_default = ("dense",)
    largest_world_size = {}
    agreed_nbytes = 0

    @property
    def ratio(self) -> float:
        """1: nothing is left out."""
        return 1.0

    def message_nbytes(self, numels: Sequence[int], collective: str) -> int:
        """Return the wire bytes of float32 gradients."""
        return FLOAT32_NBYTES * sum(numels)
