"""What an all-reduce takes longer where it does not sum float32.

Backends sum short formats by conversions, on gloo's CPU threads at half the speed of
float32, byte for byte. Behind a slow link that does not show, so it is measured on the
network itself: all-reduces of equally many bytes, in turn, the slowest rank of each,
by pairs. They are as long as may be without taking long: the difference grows with the
bytes, its noise does not.
"""

from __future__ import annotations

from collections.abc import Iterable
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
"""Of each all-reduce at least, if others are as long."""

LONG_NBYTES, QUICK_S = 2**23, 0.02
"""And at most, where it takes no more time than this."""

ITERATIONS = 10

CALLS = (1 + ITERATIONS) * (1 + len(DTYPES))
"""All-reduces in all, the first of each format as a warm-up."""


def is_fitting(nbytes: int, call_s: float) -> bool:
    """Return whether formats may be compared by all-reduces that take so long."""
    return nbytes <= NBYTES or (nbytes <= LONG_NBYTES and call_s <= QUICK_S)


def fitting_nbytes(measured: Iterable[tuple[int, float]]) -> int:
    """Return which size to compare at, of those ``measured`` (bytes, seconds)."""
    sizes = dict(measured)
    fitting = (size for size, call_s in sizes.items() if is_fitting(size, call_s))
    return max(fitting, default=min(sizes))


def summing(transport: Transport, nbytes: int) -> dict[str, float]:
    """Return for each of :data:`DTYPES` by how many seconds a byte takes longer.

    A collective call.

    Args:
        transport: the ranks.
        nbytes: of each all-reduce, a multiple of 4.
    """
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
    longer_s = np.median(slowest_s[:, 1:] - slowest_s[:, :1], axis=0) / nbytes
    return dict(zip(DTYPES, longer_s.clip(min=0).tolist(), strict=True))
