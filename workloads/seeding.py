"""The global random numbers of Python, NumPy and PyTorch, seeded together."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed every global generator."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed them for the block, in which a workload is made; then restore their states.

    But for those of devices: to ask for them would begin to use one, and a rank has not
    chosen its own yet.
    """
    python, numbers = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        seed_all(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)
