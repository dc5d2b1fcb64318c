"""Work that passes over a tensor several times, done while parts of it are in cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch

CHUNK_NUMEL = 1 << 16
"""Elements of a part: in float32 a few of them fit into a core's own cache."""


def at_once(tensor: torch.Tensor, on_cpu: int = CHUNK_NUMEL) -> int:
    """Return how many elements of ``tensor`` to work on at a time; a GPU takes all.

    Between passes over a large tensor that is not cut, a CPU writes every intermediate
    result to memory and reads it again, which takes longer than the arithmetic.
    """
    return max(1, tensor.numel()) if tensor.is_cuda else on_cpu


def in_chunks(
    *tensors: torch.Tensor, on_cpu: int = CHUNK_NUMEL
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the parts, :func:`at_once` each, of equally long ``tensors`` [n]."""
    numel = at_once(tensors[0], on_cpu)
    return zip(*(tensor.split(numel) for tensor in tensors), strict=True)


def row_slices(groups: torch.Tensor) -> Iterator[slice]:
    """Yield slices of the rows of ``groups`` [n, m], :func:`at_once` elements each."""
    rows = max(1, at_once(groups) // groups.shape[1])
    for start in range(0, len(groups), rows):
        yield slice(start, min(start + rows, len(groups)))
