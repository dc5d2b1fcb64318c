"""Groups of numbers as records: whole multiples of a step, packed, and the step.

With m the largest magnitude of a group and L = 2^(bits - 1) - 1, a number becomes the
nearest multiple of the step ``m / L``; of two as near, the even one. Zeros stay zeros,
and nothing is rounded away from zero by more than it is large, so that what is left is
less than what there was. A record holds the multiples, plus L, of ``bits`` bits each
(:mod:`~comm_plan.compressors.packing`), and the step in float32.

A group is as many numbers as fill whole words, so that records need no padding.

On CPU the loops of :mod:`~comm_plan.compressors.numba_levels` do it in one pass; on a
GPU, and where Numba is missing, PyTorch's own operations do. Both write the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from comm_plan.compressors.chunks import at_once
from comm_plan.compressors.packing import pack_codes, unpack_codes
from comm_plan.plans.compression.spec import FLOAT32_NBYTES

LEAST_STEP = 1e-30
"""The least step, so that nothing is divided by zero; smaller numbers wait."""

_AT_ONCE = 1 << 18
"""Numbers to work on at a time on CPU: with fewer, calls cost more than work."""


def highest(bits: int) -> int:
    """Return the largest multiple of a step that ``bits`` bits hold, the sign too."""
    return (1 << (bits - 1)) - 1


def load(device: torch.device) -> None:
    """Load what works on ``device`` now, so that no step waits for it."""
    _loops(device)


def squeeze(
    values: torch.Tensor, records: torch.Tensor, bits: int, scale: float = 1.0
) -> None:
    """Round ``values`` into ``records``, and leave in them what rounding took.

    Args:
        values: [groups, n] float32, finite, contiguous.
        records: [groups, bytes] uint8, contiguous; overwritten.
        bits: of a multiple; 8, or a number whose codes fill whole bytes with n.
        scale: of the steps that are written.
    """
    loops = _loops(values.device)
    if loops is not None:
        loops.squeeze(values, records, bits, scale)
        return
    for rows in _cut(values):
        part = values[rows]
        largest = part.abs().amax(1, keepdim=True)
        steps = largest.div_(highest(bits)).clamp_(min=LEAST_STEP)
        levels = (part / steps).round_()
        part.addcmul_(levels, steps, value=-1)
        codes = levels.to(torch.int8).add_(highest(bits)).view(torch.uint8)
        packed, sent_steps = _split(records[rows])
        packed.copy_(pack_codes(codes, bits))
        torch.mul(steps, scale, out=sent_steps)


def read(records: torch.Tensor, out: torch.Tensor, bits: int) -> None:
    """Overwrite ``out`` [groups, n] float32 with what ``records`` say.

    Args:
        records: [groups, bytes] uint8.
        out: contiguous.
        bits: of a multiple.
    """
    loops = _loops(out.device)
    if loops is not None:
        loops.read(records, out, bits)
        return
    for rows in _cut(out):
        levels, steps = _unpack(records[rows], bits, out.shape[1])
        torch.mul(levels, steps, out=out[rows])


def add(
    records: torch.Tensor, total: torch.Tensor, bits: int, times: float = 1.0
) -> None:
    """Add to ``total`` [groups, n] float32 what all ranks' ``records`` say.

    Args:
        records: [ranks, groups, bytes] uint8.
        total: contiguous.
        bits: of a multiple.
        times: how often.
    """
    loops = _loops(total.device)
    if loops is not None:
        loops.add(records, total, bits, times)
        return
    for rows in _cut(total, len(records)):
        levels, steps = _unpack(records[:, rows], bits, total.shape[1])
        total[rows].add_(levels.mul_(steps).sum(0), alpha=times)


@cache
def _numba() -> Any:
    """Return the module of the CPU's loops, None where Numba is not installed."""
    if find_spec("numba") is None:
        return None
    return import_module("comm_plan.compressors.numba_levels")


def _loops(device: torch.device) -> Any:
    """Return the module of the loops; None: ``device`` has none."""
    return _numba() if device.type == "cpu" else None


def _unpack(
    records: torch.Tensor, bits: int, numel: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the levels [..., numel] and the steps [..., 1] of ``records``."""
    packed, steps = _split(records)
    codes = unpack_codes(packed, bits, numel)
    return codes.view(torch.int8).sub_(highest(bits)).float(), steps


def _split(records: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the packed levels [..., bytes] and the steps [..., 1]."""
    end = records.shape[-1] - FLOAT32_NBYTES
    return records[..., :end], records[..., end:].view(torch.float32)


def _cut(groups: torch.Tensor, times: int = 1) -> Iterator[slice]:
    """Yield the rows of ``groups`` in pieces that stay in cache so many times."""
    numel = at_once(groups, on_cpu=_AT_ONCE)
    rows = max(1, numel // (times * groups.shape[1]))
    for start in range(0, len(groups), rows):
        yield slice(start, min(start + rows, len(groups)))
