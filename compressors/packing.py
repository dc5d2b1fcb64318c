"""Small integers packed into bytes: five trits a byte, or b bits each.

*Trits* {-1, 0, 1}: 3^5 = 243 <= 256, so a byte holds five, 1.6 bits each. The layout is
planar: with m = ceil(n / 5), byte j holds the elements j, m + j, ..., 4m + j, lowest
first, so that packing and unpacking are a few passes over long contiguous runs.

*Codes* of b <= 8 bits: a stream of bits, lowest first. Codes that fill whole bytes
together (eight, or where b divides 8 only 8 / b), one a byte, are read as one word, and
rounds of shifts push the zero bits out: between bytes, then half words, then words. No
loop over elements, no look-up table.

Both lengths are the exact ceilings that the specs in ``plans`` state; what is left of
the last byte is zero.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

TRITS_PER_BYTE = 5
CHUNK_NUMEL = 1 << 18  # codes that stay in cache; whole groups of eight
ALL_ZERO_TRITS = 121  # 1 + 3 + 9 + 27 + 81: a trit is stored as 0, 1 or 2
_WORDS = (torch.uint8, torch.int16, torch.int32, torch.int64)  # of 2^rounds bytes


def pack_trits(trits: torch.Tensor) -> torch.Tensor:
    """Return [ceil(n / 5)] uint8 for ``trits`` [n] int8 in {-1, 0, 1}."""
    packed_numel = -(-trits.numel() // TRITS_PER_BYTE)
    packed = trits.new_full((packed_numel,), ALL_ZERO_TRITS, dtype=torch.uint8)
    # Modulo 256, adding -1 is adding 255.
    for place, plane in enumerate(torch.split(trits.view(torch.uint8), packed_numel)):
        packed[: plane.numel()].add_(plane, alpha=3**place)
    return packed


def unpack_trits(packed: torch.Tensor, numel: int) -> torch.Tensor:
    """Return the ``numel`` trits [n] int8 that :func:`pack_trits` packed."""
    planes = packed.new_empty(TRITS_PER_BYTE, packed.numel())
    rest = packed
    for plane in planes:
        third = _third(rest)
        torch.sub(rest, third, alpha=3, out=plane)
        rest = third
    return planes.sub_(1).view(torch.int8).view(-1)[:numel]


def padded(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    """Return ``tensor`` [n] and zeros up to a ``multiple``; itself if n is one."""
    missing = -tensor.numel() % multiple
    return pad(tensor, (0, missing)) if missing else tensor


def pack_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Return [ceil(n * bits / 8)] uint8 for ``codes`` [n] uint8 below ``2 ** bits``."""
    return _joined([_pack_chunk(c, bits) for c in torch.split(codes, CHUNK_NUMEL)])


def unpack_codes(packed: torch.Tensor, bits: int, numel: int) -> torch.Tensor:
    """Return the ``numel`` codes [n] uint8 that :func:`pack_codes` packed."""
    chunks = torch.split(packed, CHUNK_NUMEL // 8 * bits)
    return _joined([_unpack_chunk(chunk, bits) for chunk in chunks])[:numel]


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _pack_chunk(codes: torch.Tensor, bits: int) -> torch.Tensor:
    numel = codes.numel()
    rounds = _rounds(bits)
    words = padded(codes, 2**rounds).view(_WORDS[rounds])
    for width, shift in _moves(bits):
        low = _mask(width, 2 * (width + shift), words.itemsize)
        words = (words & low) | ((words >> shift) & (low << width))
    return _low_bytes(words, bits)[: -(-numel * bits // 8)]


def _unpack_chunk(packed: torch.Tensor, bits: int) -> torch.Tensor:
    words = _from_low_bytes(packed, bits)
    for width, shift in reversed(_moves(bits)):
        low = _mask(width, 2 * (width + shift), words.itemsize)
        words = (words & low) | ((words << shift) & (low << (width + shift)))
    return words.view(torch.uint8)


def _low_bytes(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the bytes of every word that hold its codes."""
    if 8 % bits == 0:
        return words.to(torch.uint8)
    return _columns(words.view(torch.uint8).view(-1, 8), bits, bits).view(-1)


def _from_low_bytes(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Return words whose lower bytes are those of ``packed``, the others zero."""
    if 8 % bits == 0:
        return packed.to(_WORDS[_rounds(bits)])
    groups = padded(packed, bits).view(-1, bits)
    return _columns(groups, bits, 8).view(torch.int64).view(-1)


def _third(x: torch.Tensor) -> torch.Tensor:
    """Return ``x // 3``; NumPy divides bytes 80 times faster than PyTorch on CPU."""
    if x.is_cuda:
        return x.div(3, rounding_mode="floor")
    return torch.from_numpy(x.numpy() // 3)


def _rounds(bits: int) -> int:
    """Return how many rounds there are: a word is of 2 to this power bytes."""
    return {1: 3, 2: 2, 4: 1, 8: 0}.get(bits, 3)


def _moves(bits: int) -> list[tuple[int, int]]:
    """Return for each round the width of a field and how far the upper one moves."""
    return [(bits << r, (8 - bits) << r) for r in range(_rounds(bits))]


def _mask(width: int, period: int, nbytes: int) -> int:
    """Return a word in which every ``period`` bits begin with ``width`` ones."""
    return sum(((1 << width) - 1) << at for at in range(0, 8 * nbytes, period))


def _columns(source: torch.Tensor, copied: int, width: int) -> torch.Tensor:
    """Return [m, width]: the first ``copied`` columns of ``source``, then zeros."""
    target = source.new_zeros(source.shape[0], width)
    for column in range(copied):
        target[:, column] = source[:, column]
    return target
