"""What a rank contributes for one bucket, between compressor and network."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch

Message: TypeAlias = "tuple[torch.Tensor, ...]"
"""Flat tensors; how many and of which dtypes is fixed for a compressor."""
