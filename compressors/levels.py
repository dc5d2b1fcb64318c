"""Groups of numbers as records: whole multiples of a step, packed, and the step.

With m the largest magnitude of a group and L = 2^(bits - 1) - 1, a number becomes a
multiple of the step ``m / L``: the nearest one (:func:`squeeze`), or one of the two
next to it, at random and equal to it on average (:func:`draw`). Zeros stay zeros, and
the nearest is never further from zero than twice the number, so that what it leaves is
no more than what there was. A record holds the multiples, plus L, of ``bits`` bits each
(:mod:`~comm_plan.compressors.packing`), and the step in float32.

A group is as many numbers as fill whole words, so that records need no padding.

On CPU the loops of :mod:`~comm_plan.compressors.numba_loops` do it in one pass; on a
GPU, and where Numba is missing, PyTorch's own operations do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from comm_plan.compressors.chunks import row_slices
from comm_plan.compressors.loops import loops
from comm_plan.compressors.packing import pack_codes, unpack_codes
from comm_plan.compressors.rounding import StochasticRounding
from comm_plan.plans.compression.spec import FLOAT32_NBYTES

LEAST_STEP = 1e-30
"""The least step, so that nothing is divided by zero; smaller numbers count as 0."""


def highest(bits: int) -> int:
    """Return the largest multiple of a step that ``bits`` bits hold, the sign too."""
    return (1 << (bits - 1)) - 1


def in_groups(
    numels: Sequence[int],
    groups: Sequence[int],
    group_numel: int,
    device: torch.device,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return zeros for the groups of several tensors, and each tensor's part of them.

    Args:
        numels: of the tensors.
        groups: how many groups each is cut into; what is left of its last stays zero.
        group_numel: numbers in a group.
        device: where.

    Returns:
        whole: [sum of groups, group_numel] float32.
        parts: views of it, [numel] each.
    """
    shape = sum(groups), group_numel
    whole = torch.zeros(shape, dtype=torch.float32, device=device)
    cut = whole.split(list(groups))
    return whole, [rows.view(-1)[:n] for rows, n in zip(cut, numels, strict=True)]


def squeeze(
    values: torch.Tensor, records: torch.Tensor, bits: int, scale: float = 1.0
) -> None:
    """Round ``values`` into ``records``, and leave in them what rounding took.

    Args:
        values: [groups, n] float32, finite, contiguous.
        records: [groups, bytes] uint8, contiguous; overwritten.
        bits: of a multiple.
        scale: of the steps that are written.
    """
    compiled = loops(values.device)
    if compiled is not None:
        compiled.squeeze(values, records, bits, scale)
        return
    for rows in row_slices(values):
        part = values[rows]
        steps = _steps(part, bits)
        levels = (part / steps).round_()
        part.addcmul_(levels, steps, value=-1)
        _write(records[rows], levels.to(torch.int8), steps * scale, bits)


def draw(
    values: torch.Tensor,
    records: torch.Tensor,
    bits: int,
    rounding: StochasticRounding,
) -> None:
    """Round ``values`` into ``records`` at random.

    Args:
        values: [groups, n] float32, finite, contiguous; only read.
        records: [groups, bytes] uint8, contiguous; overwritten.
        bits: of a multiple.
        rounding: of these values.
    """
    if rounding.loops is not None:
        rounding.loops.draw(values, records, bits, rounding.halves)
        return
    for rows in row_slices(values):
        part = values[rows]
        steps = _steps(part, bits)
        levels = torch.empty_like(part, dtype=torch.int8)
        rounding.round((part / steps).view(-1), levels.view(-1))
        levels.clamp_(-highest(bits), highest(bits))
        _write(records[rows], levels, steps, bits)


def read(
    of_ranks: Sequence[torch.Tensor],
    out: torch.Tensor,
    bits: int,
    times: float = 1.0,
) -> None:
    """Overwrite ``out`` with ``times`` the sum of what records say.

    Args:
        of_ranks: every rank's, [groups, bytes] uint8.
        out: [groups, n] float32, contiguous.
        bits: of a multiple.
        times: how often.
    """
    _sum(of_ranks, out, bits, times, keep=False)


def add(
    of_ranks: Sequence[torch.Tensor],
    total: torch.Tensor,
    bits: int,
    times: float = 1.0,
) -> None:
    """Add to ``total`` what :func:`read` would make of ``of_ranks``."""
    _sum(of_ranks, total, bits, times, keep=True)


def _sum(
    of_ranks: Sequence[torch.Tensor],
    total: torch.Tensor,
    bits: int,
    times: float,
    *,
    keep: bool,
) -> None:
    """Add to ``total``, of which nothing is kept unless ``keep``."""
    compiled = loops(total.device)
    if compiled is not None:
        compiled.add(of_ranks, total, bits, times, keep)
        return
    for rows in row_slices(total):
        part = total[rows]
        if not keep:
            part.zero_()
        for records in of_ranks:
            levels, steps = _unpack(records[rows], bits, part.shape[1])
            if part.is_cuda:
                part.addcmul_(levels, steps, value=times)
            else:  # to the bit as the loops do, which round each product
                part.add_(levels.mul_(times).mul_(steps))


def _steps(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the steps [groups, 1] of ``values`` [groups, n]."""
    largest = values.abs().amax(1, keepdim=True)
    return largest.div_(highest(bits)).clamp_(min=LEAST_STEP)


def _write(
    records: torch.Tensor, levels: torch.Tensor, steps: torch.Tensor, bits: int
) -> None:
    """Write ``levels`` [groups, n] int8 and ``steps`` [groups, 1]."""
    codes = levels.add_(highest(bits)).view(torch.uint8)
    packed, own_steps = _split(records)
    packed.copy_(pack_codes(codes, bits))
    own_steps.copy_(steps)


def _unpack(
    records: torch.Tensor, bits: int, numel: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the levels [groups, numel] and the steps [groups, 1] of ``records``."""
    packed, steps = _split(records)
    codes = unpack_codes(packed, bits, numel)
    return codes.view(torch.int8).sub_(highest(bits)).float(), steps


def _split(records: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the packed levels [..., bytes] and the steps [..., 1]."""
    end = records.shape[-1] - FLOAT32_NBYTES
    return records[..., :end], records[..., end:].view(torch.float32)
