"""The global random numbers: of Python, NumPy and PyTorch, kept together."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

States = dict[str, Any]


def states() -> States:
    """Return the states of all global generators; of a device only if it is in use.

    To ask for it would begin to use the device, where a run on the CPU wants none.
    """
    name, keys, *rest = np.random.get_state()
    generators: States = {
        "python": random.getstate(),
        "numpy": (name, np.asarray(keys).tolist(), *rest),  # no array in checkpoints
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        generators["cuda"] = torch.cuda.get_rng_state()
    return generators


def restore(states: States) -> None:
    """Bring all global generators back to ``states``."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


@contextmanager
def kept() -> Iterator[None]:
    """Bring all global generators back to where they were, at the end of the block."""
    before = states()
    try:
        yield
    finally:
        restore(before)
