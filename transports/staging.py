"""Tensors of a device, for engines that read and write main memory only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def on_cpu(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Lend ``tensor`` in main memory; what is written there is in it afterwards."""
    staged = tensor.detach().cpu()
    yield staged
    if staged.device != tensor.device:
        tensor.copy_(staged)
