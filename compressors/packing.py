"""Small integers packed into bytes: five trits a byte, or b bits each.

Both layouts are planar: bytes are sums of long contiguous runs of elements, so that
packing and unpacking are a few passes, without a loop over elements or a table.

*Trits* {-1, 0, 1}: 3^5 = 243 <= 256, so a byte holds five, 1.6 bits each. With m =
ceil(n / 5), byte j holds the elements j, m + j, ..., 4m + j, lowest first.

*Codes* of b <= 8 bits: the fewest that fill whole bytes are packed together, p of them
into q bytes (two into one where b = 4, eight into b where b is odd). With m =
ceil(n / p), the bits of the elements j, m + j, ..., (p - 1) m + j, lowest first, are
those of the bytes j, m + j, ..., (q - 1) m + j.

What is left of the last bytes is zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from comm_plan.compressors.loops import loops
from comm_plan.plans.compression.spec import packed_together

TRITS_PER_BYTE = 5
ALL_ZERO_TRITS = 121  # 1 + 3 + 9 + 27 + 81: a trit is stored as 0, 1 or 2


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


def sum_trits(of_ranks: torch.Tensor, out: torch.Tensor, scale: torch.Tensor) -> None:
    """Overwrite ``out`` with ``scale`` times the sum of all ranks' trits.

    Args:
        of_ranks: [P, ceil(n / 5)] uint8, what each of them packed.
        out: [n] float32, contiguous.
        scale: a number.
    """
    compiled = loops(out.device)
    if compiled is not None:
        compiled.sum_trits(of_ranks, out, scale.item())
        return
    torch.mul(count_trits(of_ranks.unbind(), out.numel()), scale, out=out)


def count_trits(of_ranks: Sequence[torch.Tensor], numel: int) -> torch.Tensor:
    """Return the sum of all ranks' trits [numel] int16, by PyTorch's operations.

    Args:
        of_ranks: [ceil(numel / 5)] uint8 each, what they packed.
        numel: how many each has.
    """
    count = of_ranks[0].new_zeros(numel, dtype=torch.int16)
    for packed in of_ranks:
        count += unpack_trits(packed, numel)
    return count


def padded(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    """Return ``tensor`` [..., n] and zeros up to a ``multiple``; itself if n is one."""
    missing = -tensor.shape[-1] % multiple
    return pad(tensor, (0, missing)) if missing else tensor


def pack_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the ``codes``, below ``2 ** bits``, packed along their last dimension.

    Args:
        codes: [..., n] uint8.
        bits: of a code, at most 8.

    Returns:
        [..., packed_nbytes(n, bits)] uint8.
    """
    together, _ = packed_together(bits)
    planes = padded(codes, together).unflatten(-1, (together, -1)).unbind(-2)
    packed: list[torch.Tensor] = []
    for place, plane in enumerate(planes):
        byte, shift = divmod(place * bits, 8)
        if byte == len(packed):
            packed.append(plane)
        else:
            packed[byte] = packed[byte].add(plane, alpha=1 << shift)  # modulo 256
        if shift + bits > 8:
            packed.append(plane >> (8 - shift))
    return torch.cat(packed, dim=-1)


def unpack_codes(packed: torch.Tensor, bits: int, numel: int) -> torch.Tensor:
    """Return the codes [..., numel] uint8 that :func:`pack_codes` packed."""
    together, nbytes = packed_together(bits)
    rows = packed.unflatten(-1, (nbytes, -1)).unbind(-2)
    planes: list[torch.Tensor] = []
    for place in range(together):
        byte, shift = divmod(place * bits, 8)
        plane = rows[byte] >> shift if shift else rows[byte]
        if shift + bits > 8:
            plane = plane.add(rows[byte + 1], alpha=1 << (8 - shift))
        planes.append(plane & ((1 << bits) - 1) if shift + bits != 8 else plane)
    return torch.cat(planes, dim=-1)[..., :numel]


def _third(x: torch.Tensor) -> torch.Tensor:
    """Return ``x // 3``; NumPy divides bytes 80 times faster than PyTorch on CPU."""
    if x.is_cuda:
        return x.div(3, rounding_mode="floor")
    return torch.from_numpy(x.numpy() // 3)
