"""Whether a tensor holds inf or NaN."""

from __future__ import annotations

import math

import torch


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` holds neither inf nor NaN; one pass if so."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    finite = math.isfinite(tensor.sum(dtype=wide).item())
    return finite or bool(torch.isfinite(tensor).all())
