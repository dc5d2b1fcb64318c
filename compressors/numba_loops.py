"""Loops over elements, compiled for the CPU by Numba.

They do in one pass what takes PyTorch's operations one each, with what lies between
written to memory: :mod:`~comm_plan.compressors.levels`,
:mod:`~comm_plan.compressors.rounding`, :mod:`~comm_plan.compressors.selection`,
:mod:`~comm_plan.compressors.words` and the sums of
:mod:`~comm_plan.compressors.packing` say what. They run without the
interpreter's lock, so that backward goes on beside them. Numba compiles them when this
module is imported, which takes seconds, and keeps what it made in its cache, so that
the next import takes less than one.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numba
import numpy as np
import numpy.typing as npt
import torch

from comm_plan.compressors.chunks import row_slices
from comm_plan.compressors.levels import LEAST_STEP, highest
from comm_plan.compressors.packing import TRITS_PER_BYTE
from comm_plan.plans.compression.spec import FLOAT32_NBYTES, packed_together

Floats: TypeAlias = npt.NDArray[np.float32]
Halves: TypeAlias = npt.NDArray[np.uint16]
Integers: TypeAlias = npt.NDArray[np.intp]

_compiled = partial(numba.njit, nogil=True, cache=True)

_MAGNITUDE = np.int32(0x7FFFFFFF)
_LEAST = np.float32(LEAST_STEP)
_WORDS = np.float32(1 << 32)
_BYTES_AT_ONCE = 1 << 12
_NOTHING = np.empty(0, np.float32)
_BLOCK = 128
"""Elements of which it is counted how many to look for, before each is looked at."""
_RARE = 32
"""One in as many, or fewer, are found sooner with a branch: it is mostly foreseen."""


def squeeze(
    values: torch.Tensor, records: torch.Tensor, bits: int, scale: float
) -> None:
    """Do :func:`comm_plan.compressors.levels.squeeze`."""
    _squeeze(values.numpy(), records.numpy(), *_layout(bits), scale)


def draw(
    values: torch.Tensor,
    records: torch.Tensor,
    bits: int,
    halves: Callable[[int], Halves],
) -> None:
    """Do :func:`comm_plan.compressors.levels.draw` by random ``halves``."""
    layout, array, out = _layout(bits), values.numpy(), records.numpy()
    for rows in row_slices(values):
        _draw(array[rows], out[rows], *layout, halves(array[rows].size))


def add(
    of_ranks: Sequence[torch.Tensor],
    total: torch.Tensor,
    bits: int,
    times: float,
    keep: bool,
) -> None:
    """Do :func:`comm_plan.compressors.levels.add`; without ``keep``, ``read``."""
    layout, out = _layout(bits), total.numpy()
    arrays = [records.numpy() for records in of_ranks]
    for rows in row_slices(total):
        for number, records in enumerate(arrays):
            _add(records[rows], out[rows], *layout, times, keep or number > 0)


def round_to(out: torch.Tensor, x: torch.Tensor, halves: Halves) -> None:
    """Write to ``out`` [n] the floor of ``x`` [n] or the ceiling, by ``halves``."""
    _round_to(out.numpy(), x.numpy(), halves)


def sum_trits(of_ranks: torch.Tensor, out: torch.Tensor, scale: float) -> None:
    """Do :func:`comm_plan.compressors.packing.sum_trits`."""
    _sum_trits(of_ranks.numpy(), out.numpy(), scale)


def above(
    values: Floats, gradient: Floats | None, threshold: np.float32, scratch: Integers
) -> Integers:
    """Add ``gradient``, where given, and return where magnitudes exceed ``threshold``.

    Args:
        values: [n], changed in place.
        gradient: [n].
        threshold: below 0: all of them.
        scratch: [n], of which the result is a part.
    """
    added = _NOTHING if gradient is None else gradient
    return scratch[: _above(values, added, threshold, scratch)]


def unambiguous(
    residual: Floats, variance: Floats, alpha: float, tau: float, scratch: Integers
) -> Integers:
    """Return where ``residual ** 2 > alpha * variance`` and ``abs(residual) > tau``.

    Args:
        residual: [n].
        variance: [n].
        alpha: VGC's.
        tau: Strom's; below 0: every magnitude exceeds it.
        scratch: [n], of which the result is a part.
    """
    return scratch[: _unambiguous(residual, variance, alpha, tau, scratch)]


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


@_compiled()
def _drawn(x, halves, i):
    """Return the floor of ``x``, or the ceiling, by the i-th two of the halves."""
    floor = np.floor(x)
    word = np.uint32(halves[i]) << np.uint32(16) | np.uint32(halves[i + 1])
    return floor + np.float32(np.float32(word) < (x - floor) * _WORDS)


@_compiled()
def _write(record, codes, step, bits, together):
    _pack(codes, record[:-FLOAT32_NBYTES], bits, together)
    record[-FLOAT32_NBYTES:].view(np.float32)[0] = step


@_compiled("void(float32[:, ::1], uint8[:, ::1], int64, int64, int64, float64)")
def _squeeze(values, records, bits, together, highest, scale):
    groups, numel = values.shape
    highest = np.float32(highest)
    codes = np.empty(numel, np.uint8)
    for group in range(groups):
        row = values[group]
        step = max(_largest(row) / highest, _LEAST)
        for i in range(numel):
            level = np.rint(row[i] / step)
            row[i] -= level * step
            codes[i] = np.uint8(level + highest)
        _write(records[group], codes, step * np.float32(scale), bits, together)


@_compiled("void(float32[:, ::1], uint8[:, ::1], int64, int64, int64, uint16[::1])")
def _draw(values, records, bits, together, highest, halves):
    groups, numel = values.shape
    highest = np.float32(highest)
    codes = np.empty(numel, np.uint8)
    for group in range(groups):
        row, own = values[group], halves[group * numel :]
        step = max(_largest(row) / highest, _LEAST)
        for i in range(numel):
            level = _drawn(row[i] / step, own, i)
            codes[i] = np.uint8(min(max(level, -highest), highest) + highest)
        _write(records[group], codes, step, bits, together)


@_compiled("void(uint8[:, ::1], float32[:, ::1], int64, int64, int64, float64, b1)")
def _add(records, total, bits, together, highest, times, keep):
    groups, numel = total.shape
    highest = np.float32(highest)
    codes = np.empty(numel, np.uint8)
    for group in range(groups):
        row, record = total[group], records[group]
        step = record[-FLOAT32_NBYTES:].view(np.float32)[0]
        _unpack(record[:-FLOAT32_NBYTES], codes, bits, together)
        if not keep:
            row[:] = 0
        for i in range(numel):
            row[i] += np.float32(times) * (np.float32(codes[i]) - highest) * step


@_compiled("int64(float32[::1], float32[::1], float32, int64[::1])")
def _above(values, gradient, threshold, positions):
    count = 0
    for start in range(0, values.size, _BLOCK):
        block = values[start : start + _BLOCK]
        if gradient.size:
            added = gradient[start : start + _BLOCK]
            for i in range(block.size):
                block[i] += added[i]
        hits = np.int32(0)
        for i in range(block.size):
            hits += np.int32(abs(block[i]) > threshold)
        if hits > _BLOCK // _RARE:
            for i in range(block.size):
                positions[count] = start + i
                count += abs(block[i]) > threshold
            continue
        i = 0
        while hits:
            if abs(block[i]) > threshold:
                positions[count] = start + i
                count += 1
                hits -= 1
            i += 1
    return count


@_compiled("int64(float32[::1], float32[::1], float32, float32, int64[::1])")
def _unambiguous(residual, variance, alpha, tau, positions):
    count = 0
    for start in range(0, residual.size, _BLOCK):
        r, v = residual[start : start + _BLOCK], variance[start : start + _BLOCK]
        hits = np.int32(0)
        for i in range(r.size):
            hits += np.int32((r[i] * r[i] > alpha * v[i]) & (abs(r[i]) > tau))
        i = 0
        while hits:
            positions[count] = start + i
            is_hit = (r[i] * r[i] > alpha * v[i]) & (abs(r[i]) > tau)
            count += is_hit
            hits -= np.int32(is_hit)
            i += 1
    return count


@_compiled("void(int8[::1], float32[::1], uint16[::1])")
def _round_to(out, x, halves):
    for i in range(x.size):
        out[i] = np.int8(_drawn(x[i], halves, i))


@_compiled("void(uint8[:, ::1], float32[::1], float64)")
def _sum_trits(of_ranks, out, scale):
    ranks, nbytes = of_ranks.shape
    scale = np.float32(scale)
    sums = np.empty((TRITS_PER_BYTE, _BYTES_AT_ONCE), np.int32)
    rest = np.empty(_BYTES_AT_ONCE, np.uint8)
    for start in range(0, nbytes, _BYTES_AT_ONCE):
        count = min(_BYTES_AT_ONCE, nbytes - start)
        sums[:] = -ranks
        for rank in range(ranks):
            rest[:count] = of_ranks[rank, start : start + count]
            for place in range(TRITS_PER_BYTE):
                row = sums[place]
                for i in range(count):
                    third = np.uint8(rest[i] // np.uint8(3))
                    row[i] += np.int32(rest[i]) - np.int32(3) * np.int32(third)
                    rest[i] = third
        for place in range(TRITS_PER_BYTE):
            plane = out[place * nbytes + start : (place + 1) * nbytes]
            row = sums[place]
            for i in range(min(count, plane.size)):
                plane[i] = scale * np.float32(row[i])
