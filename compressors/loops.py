"""Which loops there are for a device besides PyTorch's operations."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch


def loops(device: torch.device) -> Any:
    """Return :mod:`~comm_plan.compressors.numba_loops`; None: ``device`` has none.

    That is a GPU, or a CPU without Numba. The first call may have to compile them:
    make it before the first step.
    """
    return _compiled() if device.type == "cpu" else None


@cache
def _compiled() -> Any:
    if find_spec("numba") is None:
        return None
    return import_module("comm_plan.compressors.numba_loops")
