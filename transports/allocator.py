"""What a rank frees stays with it: memory that was given back is slow to get again.

glibc gives back to the system what lies free at the end of its heap. A training frees
its gradients in every iteration and wants as much in the next, which then comes page by
page, each entered and zeroed. Whether that happens depends on what else lies on the
heap, and so on all that ran before: four ranks on two cores that trained a CNN with 39
MB of gradients by PyTorch DDP's buckets took 2,200 to 11,000 pages an iteration and 382
ms, and with the memory kept 334 ms; by top-k no pages and 342 and 337 ms, all in turns
in the same processes. So it is kept: for speed, and because what is measured before a
training shall hold in it. Pieces of more than 32 MiB are the system's own, as ever:
kept, they would leave gaps that nothing else fills.

Who has set glibc's variables (``MALLOC_TRIM_THRESHOLD_`` and the like, or
``GLIBC_TUNABLES``) has decided otherwise, and so has who loads another allocator.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's ``M_TRIM_THRESHOLD`` and ``M_MMAP_THRESHOLD``."""

_MOST_FREE = 2**31 - 1
_LARGEST_PIECE = 2**25
"""To which glibc would come by itself, had it seen such pieces."""


@cache
def keep_memory(device: torch.device) -> None:
    """Let this process keep what it frees, where its allocator is glibc's.

    Args:
        device: where it trains; on others than the CPU this is not what takes time.
    """
    if device.type != "cpu" or sys.platform != "linux" or _is_decided():
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_TRIM_THRESHOLD, _MOST_FREE)
    mallopt(_MMAP_THRESHOLD, _LARGEST_PIECE)


def _is_decided() -> bool:
    """Return whether the environment says what the allocator shall do."""
    named = any(name.startswith("MALLOC_") for name in os.environ)
    return named or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
