"""How long a call of all ranks takes, from when they begin it together."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from comm_plan.transports.base import Transport


def elapsed_s(transport: Transport, run: Callable[[], object], calls: int = 1) -> float:
    """Return this rank's seconds for ``calls`` calls of ``run``, behind a barrier.

    On CUDA to the end of the device's work. A collective call.
    """
    transport.barrier()
    _synchronize(transport.device)
    started_s = time.perf_counter()
    for _ in range(calls):
        run()
    _synchronize(transport.device)
    return time.perf_counter() - started_s


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
