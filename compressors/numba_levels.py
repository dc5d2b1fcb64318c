"""The loops of :mod:`~comm_plan.compressors.levels`, compiled for the CPU by Numba.

A group is read from memory once and stays in the core's own cache until its record is
written. The loops run without the interpreter's lock, so that backward goes on beside
them. Numba compiles them when this module is imported, which takes seconds, and keeps
what it made in its cache, so that the next import takes less than one.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from functools import partial

import numba
import numpy as np
import torch

from comm_plan.compressors.levels import LEAST_STEP, highest
from comm_plan.plans.compression.spec import FLOAT32_NBYTES, packed_together

_compiled = partial(numba.njit, nogil=True, cache=True)

_MAGNITUDE = np.int32(0x7FFFFFFF)
_LEAST = np.float32(LEAST_STEP)


def squeeze(
    values: torch.Tensor, records: torch.Tensor, bits: int, scale: float
) -> None:
    """Round ``values`` into ``records``, and leave in them what rounding took."""
    _squeeze(values.numpy(), records.numpy(), *_layout(bits), scale)


def read(records: torch.Tensor, out: torch.Tensor, bits: int) -> None:
    """Overwrite ``out`` with what ``records`` say."""
    _sum(records.numpy()[None], out.numpy(), *_layout(bits), 1.0, False)


def add(records: torch.Tensor, total: torch.Tensor, bits: int, times: float) -> None:
    """Add to ``total`` what all ranks' ``records`` say."""
    of_ranks = np.ascontiguousarray(records.numpy())
    _sum(of_ranks, total.numpy(), *_layout(bits), times, True)


def _layout(bits: int) -> tuple[int, int, int]:
    """Return the bits, of how many codes together, and the highest level."""
    together, _ = packed_together(bits)
    return bits, together, highest(bits)


@_compiled()
def _largest(row):
    """Return the largest magnitude; as integers, floats are compared in vectors."""
    bits = row.view(np.int32)
    largest = np.int32(0)
    for i in range(bits.size):
        largest = np.int32(max(largest, np.int32(bits[i] & _MAGNITUDE)))
    return np.full(1, largest, np.int32).view(np.float32)[0]


@_compiled()
def _pack(codes, packed, bits, together):
    plane = codes.size // together
    packed[:] = 0
    for place in range(together):
        byte, shift = divmod(place * bits, 8)
        first = packed[byte * plane : (byte + 1) * plane]
        for i in range(plane):
            first[i] |= np.uint8(codes[place * plane + i] << shift)
        if shift + bits > 8:
            second = packed[(byte + 1) * plane : (byte + 2) * plane]
            for i in range(plane):
                second[i] = np.uint8(codes[place * plane + i] >> (8 - shift))


@_compiled()
def _unpack(packed, codes, bits, together):
    plane = codes.size // together
    mask = np.uint8((1 << bits) - 1)
    for place in range(together):
        byte, shift = divmod(place * bits, 8)
        out = codes[place * plane : (place + 1) * plane]
        first = packed[byte * plane : (byte + 1) * plane]
        if shift + bits > 8:
            second = packed[(byte + 1) * plane : (byte + 2) * plane]
            for i in range(plane):
                joined = first[i] >> shift | second[i] << (8 - shift)
                out[i] = np.uint8(joined) & mask
        else:
            for i in range(plane):
                out[i] = np.uint8(first[i] >> shift) & mask


@_compiled("void(float32[:, ::1], uint8[:, ::1], int64, int64, int64, float64)")
def _squeeze(values, records, bits, together, highest, scale):
    groups, numel = values.shape
    highest = np.float32(highest)
    codes = np.empty(numel, np.uint8)
    for group in range(groups):
        row, record = values[group], records[group]
        step = max(_largest(row) / highest, _LEAST)
        for i in range(numel):
            level = np.rint(row[i] / step)
            row[i] -= level * step
            codes[i] = np.uint8(level + highest)
        packed = record[:-FLOAT32_NBYTES]
        _pack(codes, packed, bits, together)
        record[-FLOAT32_NBYTES:].view(np.float32)[0] = step * np.float32(scale)


@_compiled("void(uint8[:, :, ::1], float32[:, ::1], int64, int64, int64, float64, b1)")
def _sum(of_ranks, total, bits, together, highest, times, keep):
    ranks, groups, _ = of_ranks.shape
    numel = total.shape[1]
    highest = np.float32(highest)
    codes = np.empty(numel, np.uint8)
    for group in range(groups):
        row = total[group]
        if not keep:
            row[:] = 0
        for rank in range(ranks):
            record = of_ranks[rank, group]
            step = record[-FLOAT32_NBYTES:].view(np.float32)[0] * np.float32(times)
            _unpack(record[:-FLOAT32_NBYTES], codes, bits, together)
            for i in range(numel):
                row[i] += (np.float32(codes[i]) - highest) * step
