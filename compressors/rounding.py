"""Stochastic rounding: floor(x + U), which is x on average for x of either sign.

The numbers are a function of a key alone (:func:`random_key`), so that a resumed run
draws the same ones.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt
import torch

from comm_plan.compressors.chunks import in_chunks
from comm_plan.compressors.loops import loops


def random_key(seed: int, step: int, name: str) -> tuple[int, int, int]:
    """Return the key of a tensor's random numbers in one step of one rank."""
    return seed, step, zlib.crc32(name.encode())


class StochasticRounding:
    """Rounds a tensor, which may come in parts.

    With the loops of a CPU, where random bits cost more than all else, each number gets
    32 of them, half of which its neighbour gets too: each is right on average, and what
    two of them share matters once in 2^16. By PyTorch's operations a number gets the 24
    of a float32 uniform.

    Args:
        key: non-negative integers; equal keys draw equal numbers.
        device: where the tensor lives.
    """

    def __init__(self, key: tuple[int, ...], device: torch.device) -> None:
        seeds = np.random.SeedSequence(key)
        self.loops = loops(device)
        if self.loops is None:
            seed = int(seeds.generate_state(1, np.uint64)[0])
            self._generator = torch.Generator(device).manual_seed(seed)
        else:
            self._bits = np.random.SFC64(seeds)

    def halves(self, numel: int) -> npt.NDArray[np.uint16]:
        """Return [numel + 1 or more] random numbers; with loops only.

        The 32 bits of number i are those of i and, below them, of i + 1.
        """
        return self._bits.random_raw(numel // 4 + 1).view(np.uint16)

    def round(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Write to ``out`` the floor or the ceiling of each element, x on average.

        Args:
            x: [n] float32, contiguous, |x| < 127.
            out: [n] int8, contiguous.
        """
        if self.loops is None:
            floor = x.floor()
            uniform = torch.rand(
                x.shape, generator=self._generator, dtype=x.dtype, device=x.device
            )
            out.copy_(floor.add_(uniform < x - floor))
            return
        for chunk, rounded in in_chunks(x, out):
            self.loops.round_to(rounded, chunk, self.halves(chunk.numel()))
