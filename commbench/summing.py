"""What an all-reduce takes longer where it does not sum float32.

Backends sum short formats by conversions, on gloo's CPU threads at half the speed of
float32, byte for byte. Behind a slow link that does not show, so it is measured on the
network itself: all-reduces of equally many bytes, in turn, the slowest rank of each.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from comm_plan.plans.compression import METHODS
from comm_plan.transports.base import Transport
from comm_plan.transports.elapsed import elapsed_s

SUMMED = dict.fromkeys(
    spec.summed_as("float32", collective) for spec, collective in METHODS.values()
)
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in SUMMED if name != "float32"
}
"""What compressors sum besides float32, by their specs."""

NBYTES = 2**20
"""Of each all-reduce, if others are as long."""

ITERATIONS = 10

CALLS = (1 + ITERATIONS) * (1 + len(DTYPES))
"""All-reduces in all, the first of each format as a warm-up."""


def summing(transport: Transport, largest_nbytes: int) -> dict[str, float]:
    """Return for each of :data:`DTYPES` by how many seconds a byte takes longer.

    A collective call.

    Args:
        transport: the ranks.
        largest_nbytes: no all-reduce is to be longer.
    """
    nbytes = max(4, min(NBYTES, largest_nbytes) // 4 * 4)
    of_bytes = torch.zeros(nbytes, dtype=torch.uint8, device=transport.device)
    kinds = {"float32": torch.float32, **DTYPES}
    buffers = {name: of_bytes.view(dtype) for name, dtype in kinds.items()}
    own = [
        [
            elapsed_s(transport, partial(transport.all_reduce, buffer))
            for buffer in buffers.values()
        ]
        for _ in range(1 + ITERATIONS)
    ]
    slowest_s = np.max(transport.gather_objects(own[1:]), axis=0)
    median_s = dict(zip(kinds, np.median(slowest_s, axis=0).tolist(), strict=True))
    return {
        name: max(0.0, median_s[name] - median_s["float32"]) / nbytes for name in DTYPES
    }
