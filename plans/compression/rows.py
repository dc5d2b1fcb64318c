"""Sparse gradients: the rows of an embedding that a batch has used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from comm_plan.plans.compression.spec import FLOAT32_NBYTES, EveryElement

ROW_INDEX_NBYTES = 8


class Rows(EveryElement):
    """The rows that are there, with their numbers; nothing is left out.

    Nobody asks for it by name: the planner gives it to the tensors whose gradients are
    sparse (``rows`` in the profile).
    """

    kind: Literal["rows"] = "rows"

    methods = {"rows": "allgather"}
    implementation = "rows:RowsCompressor"
    dtypes = ("float32", "float64", "float16", "bfloat16")
    lossless = True
    carries_nonfinite = True
    variable_length = True
    keeps_last_layer = False
    by_default = ()
    largest_world_size = {}
    agreed_nbytes = 0

    @property
    def ratio(self) -> float:
        """1: nothing is left out."""
        return 1.0

    def message_nbytes(self, numels: Sequence[int], collective: str) -> int:
        """Return the bytes of rows of one float32 element, all of them there."""
        return (ROW_INDEX_NBYTES + FLOAT32_NBYTES) * sum(numels)
