"""Stochastic rounding: floor(x + U), which is x on average for x of either sign.

Random bits cost more than all other work on CPU, so an element gets 16 of them: with
``a = floor(2^16 x)`` and a random 16-bit u, the result is ``(a + u) >> 16``. That drops
the fraction f of ``2^16 x``. It matters only where one more unit would carry over, in
one of 2^16 elements; those alone draw a further 53 bits and carry with probability f.
The rounding is thus unbiased down to 2^-69, for the price of 16 bits an element.

On CUDA, where random bits are cheap, an element gets the 24 of a float32 uniform.

The numbers are a function of a key alone (:func:`random_key`): a resumed run draws the
same ones, and so does a tensor that another plan puts into another bucket.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt
import torch

from comm_plan.compressors.chunks import in_chunks

CHUNK_NUMEL = 1 << 15  # the scratch of a chunk stays in cache
LAST_BEFORE_CARRY = 0xFFFF


def random_key(seed: int, step: int, name: str) -> tuple[int, int, int]:
    """Return the key of a tensor's random numbers in one step of one rank."""
    return seed, step, zlib.crc32(name.encode())


def round_stochastically(
    x: torch.Tensor, out: torch.Tensor, key: tuple[int, ...]
) -> None:
    """Write to ``out`` the floor or the ceiling of every element, x on average.

    Args:
        x: [n] float32, contiguous, |x| < 128.
        out: [n] int8, contiguous.
        key: non-negative integers; equal keys draw equal numbers.
    """
    StochasticRounding(key).round(x, out)


class StochasticRounding:
    """:func:`round_stochastically`, for a tensor that comes in parts.

    However it is cut, as long as all parts but the last are multiples of four elements,
    a CPU draws the same numbers: what few elements need is a sequence of its own.

    Args:
        key: non-negative integers; equal keys draw equal numbers.
    """

    def __init__(self, key: tuple[int, ...]) -> None:
        self._seeds = np.random.SeedSequence(key)
        self._chunks: _Chunks | None = None

    def round(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Round the next part ``x`` [n] into ``out`` [n] int8, both contiguous."""
        if x.is_cuda:
            self._round_on_gpu(x, out)
            return
        if self._chunks is None:
            self._chunks = _Chunks(*map(np.random.SFC64, self._seeds.spawn(2)))
        for chunk, rounded in in_chunks(x, out, on_cpu=CHUNK_NUMEL):
            self._chunks.round(chunk.numpy(), rounded.numpy())

    def _round_on_gpu(self, x: torch.Tensor, out: torch.Tensor) -> None:
        (own,) = self._seeds.spawn(1)
        seed = int(own.generate_state(1, np.uint64)[0])
        generator = torch.Generator(x.device).manual_seed(seed)
        uniform = torch.rand(
            x.numel(), generator=generator, dtype=x.dtype, device=x.device
        )
        floor = x.floor()
        out.copy_(floor.add_(uniform < x - floor))


class _Chunks:
    """The rounding of one chunk after the other, with the scratch they share."""

    def __init__(self, bits: np.random.SFC64, of_edges: np.random.SFC64) -> None:
        self._bits = bits
        self._random = np.random.Generator(of_edges)
        self._scaled = np.empty(CHUNK_NUMEL, np.float32)
        self._floor = np.empty(CHUNK_NUMEL, np.float32)
        self._total = np.empty(CHUNK_NUMEL, np.int32)
        self._low = np.empty(CHUNK_NUMEL, np.uint16)

    def round(self, x: npt.NDArray[np.float32], out: npt.NDArray[np.int8]) -> None:
        scaled, floor = self._scaled[: x.size], self._floor[: x.size]
        total, low = self._total[: x.size], self._low[: x.size]
        np.multiply(x, np.float32(1 << 16), out=scaled)
        np.floor(scaled, out=floor)
        np.copyto(total, floor, casting="unsafe")
        words = self._bits.random_raw(-(-x.size // 4))
        np.add(total, words.view(np.uint16)[: x.size], out=total)
        np.copyto(low, total, casting="unsafe")
        edge = np.flatnonzero(low == LAST_BEFORE_CARRY)
        fraction = scaled[edge] - floor[edge]
        total[edge] += self._random.random(edge.size) < fraction
        np.right_shift(total, 16, out=total)
        np.copyto(out, total, casting="unsafe")
