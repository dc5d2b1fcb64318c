"""Tensors of a device, for engines that read and write main memory only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def on_cpu(tensor: torch.Tensor, *, is_read: bool = True) -> Iterator[torch.Tensor]:
    """Lend ``tensor`` in main memory; what is written there is in it afterwards.

    Args:
        tensor: on any device.
        is_read: whether it matters what is in it before.
    """
    if tensor.device.type == "cpu":
        yield tensor.detach()
        return
    staged = tensor.cpu() if is_read else torch.empty_like(tensor, device="cpu")
    yield staged
    tensor.copy_(staged)
