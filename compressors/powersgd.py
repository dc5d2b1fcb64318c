"""PowerSGD: a low-rank factor of every matrix, one power iteration a step.

Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization", NeurIPS 2019, in the alternating form of the authors' later
code: half an iteration a step. A tensor is a matrix M, its first dimension by all
others. On even steps, with r the rank and ``left`` [rows, r] the factor of the step
before::

    M    = residual + gradient
    left = orthonormalised left          equal on all ranks
    own  = M^T left                      [columns, r]
    residual = M - left own^T
    right = mean of own over the ranks   the message
    the applied mean is left right^T

and on odd steps the same with M transposed: ``right`` is orthonormalised and ``left``
sent. Step by step the factors turn towards the largest singular vectors of the mean.

Whatever ``left`` is, no gradient is lost: the mean over ranks of the new residuals and
the applied mean add up to the mean of M. QR makes its columns orthonormal even where a
column is zero, as after a step without gradients, so that no direction is given up.

A step's messages are added up by one all-reduce. Tensors of one dimension, and matrices
for which it would not pay, travel in the same buffer as they are.

The residual is each rank's own and the factors are equal on all of them. Both are kept
by tensor. They start from standard normal numbers that are a function of its name.

Differences from the paper: one factor a step instead of both in two rounds (its
Algorithm 1), which halves the bytes too; on CPUs QR for Gram-Schmidt; matrices for
which it would not pay are sent as they are; momentum, which its Algorithm 2 applies to
the mean, is the optimizer's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from comm_plan.compressors.base import (
    FACTORS,
    RESIDUAL,
    Compressor,
    Context,
    Message,
    Slot,
    in_float32,
)
from comm_plan.compressors.rounding import random_key
from comm_plan.plans.compression import Matrix, PowerSgd, matrix_of


class PowerSgdCompressor(Compressor[PowerSgd]):
    """Sends one float32 tensor: a factor of each matrix, and all of the rest."""

    def __init__(
        self, spec: PowerSgd, collective: str, slots: Sequence[Slot], context: Context
    ) -> None:
        """Start with nothing left unsent, and with random factors."""
        super().__init__(spec, collective, slots, context)
        ranks = spec.ranks(len(self.slots))
        self._matrices = [
            matrix_of(slot.shape, rank)
            for slot, rank in zip(self.slots, ranks, strict=True)
        ]
        self.state[RESIDUAL] = self._zeros_by_slot()
        self.state[FACTORS] = [
            random_factors(slot.name, matrix).to(context.device)
            for slot, matrix in zip(self.slots, self._matrices, strict=True)
        ]
        self._is_even = True
        nothing = torch.empty(0, device=context.device)
        self._bases = [nothing] * len(self.slots)
        self._sent = list(self._bases)
        self._means = list(self._bases)

    def add(
        self,
        index: int,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None = None,
    ) -> None:
        """Add the gradient to the residual."""
        self.state[RESIDUAL][index] += gradient

    def encode(self) -> Message:
        """Return this rank's share of the mean, tensor by tensor, [n] float32."""
        self._is_even = self.step % 2 == 0
        self._bases = [self._basis(index) for index in range(len(self.slots))]
        self._sent = [self._take(index) for index in range(len(self.slots))]
        message = torch.cat([sent.flatten() for sent in self._sent])
        return (message.div_(self.context.world_size),)

    def decode(self, messages: Sequence[Message]) -> None:
        """Take the mean; its factors are what the next step starts from."""
        ((mean,),) = messages
        parts = mean.split([sent.numel() for sent in self._sent])
        self._means = list(map(torch.Tensor.view_as, parts, self._sent))
        for index, matrix in enumerate(self._matrices):
            if matrix is not None:
                _, sent = self._factors(index, matrix)
                sent.copy_(self._means[index])

    def write(self, index: int, out: torch.Tensor) -> None:
        """Overwrite ``out`` with the product of the basis and the mean factor."""
        matrix, mean = self._matrices[index], self._means[index]
        if matrix is None:
            out.copy_(mean)
            return
        factors = self._bases[index], mean
        left, right = factors if self._is_even else factors[::-1]
        with in_float32(out.view(matrix.rows, matrix.columns)) as whole:
            torch.mm(left, right.T, out=whole)

    def undo(self) -> None:
        """Return to the residuals what was sent; the factors stay."""
        for index, (matrix, sent) in enumerate(
            zip(self._matrices, self._sent, strict=True)
        ):
            residual = self.state[RESIDUAL][index]
            if matrix is None:
                residual += sent
            else:
                self._oriented(residual, matrix).addmm_(self._bases[index], sent.T)

    def _take(self, index: int) -> torch.Tensor:
        """Return what is sent of a tensor, and leave the rest in its residual."""
        matrix, residual = self._matrices[index], self.state[RESIDUAL][index]
        if matrix is None:
            sent = residual.clone()
            residual.zero_()
            return sent
        whole, basis = self._oriented(residual, matrix), self._bases[index]
        # CPUs multiply a few long rows up to 16 times as fast as a few long columns.
        sent = (basis.T.contiguous() @ whole).T
        whole.addmm_(basis, sent.T, alpha=-1)
        return sent

    def _basis(self, index: int) -> torch.Tensor:
        """Return the factor that is known, orthonormalised; nothing for no matrix."""
        matrix = self._matrices[index]
        if matrix is None:
            return torch.empty(0)
        known, _ = self._factors(index, matrix)
        basis: torch.Tensor = torch.linalg.qr(known).Q
        return basis

    def _factors(self, index: int, matrix: Matrix) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the factor that a step starts from and the one that it sends."""
        rows = matrix.rows * matrix.rank
        left, right = self.state[FACTORS][index].tensor_split([rows])
        factors = left.view(-1, matrix.rank), right.view(-1, matrix.rank)
        return factors if self._is_even else factors[::-1]

    def _oriented(self, flat: torch.Tensor, matrix: Matrix) -> torch.Tensor:
        """Return a tensor as a matrix whose rows are those of the basis."""
        whole = flat.view(matrix.rows, matrix.columns)
        return whole if self._is_even else whole.T


def random_factors(name: str, matrix: Matrix | None) -> torch.Tensor:
    """Return the factors that a tensor of this name has first: standard normal numbers.

    [(rows + columns) * rank] float32; none where there is no matrix.
    """
    numel = 0 if matrix is None else matrix.factors_numel
    numbers = np.random.default_rng(random_key(0, 0, name))
    return torch.from_numpy(numbers.standard_normal(numel, dtype=np.float32))
