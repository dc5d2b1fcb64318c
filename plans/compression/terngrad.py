"""TernGrad's spec; the method is :mod:`comm_plan.compressors.terngrad`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from comm_plan.plans.compression.spec import FLOAT32_NBYTES, EveryElement

TRITS_A_BYTE = 5
LARGEST_INT8 = 127


class TernGrad(EveryElement):
    """Signs and zeros with one shared scaler a tensor.

    ``allgather`` carries five trits a byte, ``allreduce`` sums them as int8, which
    holds the sum of at most 127 ranks. The last layer stays dense by default, as the
    paper advises for large networks (section 4.2).
    """

    kind: Literal["terngrad"] = "terngrad"
    clip: Annotated[float, Field(ge=0, le=1e30)] = 2.5  # times sigma; 0: do not clip

    methods = {"terngrad": "allgather", "terngrad-allreduce": "allreduce"}
    implementation = "terngrad:TernGradCompressor"
    on_gpu = "terngrad_at_once:TernGradAtOnce"
    dtypes = ("float32", "float16", "bfloat16")
    lossless = False
    carries_nonfinite = False
    keeps_last_layer = True
    by_default = ("terngrad", "terngrad-allreduce")
    largest_world_size = {"allreduce": LARGEST_INT8}
    agreed_nbytes = FLOAT32_NBYTES  # the scaler

    @property
    def ratio(self) -> float:
        """32 bits over the 1.6 of a packed trit."""
        return 20.0

    def message_nbytes(self, numels: Sequence[int], collective: str) -> int:
        """Return the bytes of the trits: int8 to be summed, or packed by tensor."""
        if collective == "allreduce":
            return sum(numels)
        return sum(math.ceil(numel / TRITS_A_BYTE) for numel in numels)

    def summed_as(self, dtype: str, collective: str) -> str:
        """Return int8, where trits are summed."""
        return "int8" if collective == "allreduce" else "float32"
