"""Work that passes over a tensor several times, done while parts of it are in cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch

CHUNK_NUMEL = 1 << 16
"""Elements of a part: in float32 a few of them fit into a core's own cache."""


def in_chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the parts of equally long ``tensors`` [n], in order; a GPU takes it whole.

    Between passes over a large tensor that is not cut, a CPU writes every intermediate
    result to memory and reads it again, which takes longer than the arithmetic.
    """
    first = tensors[0]
    numel = max(1, first.numel()) if first.is_cuda else CHUNK_NUMEL
    return zip(*(tensor.split(numel) for tensor in tensors), strict=True)
