"""Many tensors at once: flat ones, and several in one message."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

import torch

from comm_plan.transports.base import Transport


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` detached and flat; of complex ones real parts and imaginary."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.flatten()


def shaped(flat: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return what :func:`flat` made so, in the shape of ``parameter``; shared."""
    if parameter.is_complex():
        return torch.view_as_complex(flat.view(*parameter.shape, 2))
    return flat.view(parameter.shape)


def broadcast_tensors(
    transport: Transport, tensors: Sequence[torch.Tensor], root: int = 0
) -> None:
    """Overwrite ``tensors`` with those of rank ``root``: one broadcast per dtype.

    It is one of bytes, as gloo does not know all dtypes that a buffer may have.
    Autograd is not told: a backward that is still to come may have saved them.
    """
    if transport.world_size == 1:
        return
    by_kind: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]]
    by_kind = defaultdict(list)
    for tensor in tensors:
        by_kind[tensor.dtype, tensor.device].append(tensor)
    for group in by_kind.values():
        own = [flat(tensor) for tensor in group]
        buffer = torch.cat(own)
        transport.broadcast(buffer.view(torch.uint8), root)
        if transport.rank == root:
            continue
        parts = buffer.split([part.numel() for part in own])
        # One launch on a GPU, where as many as there are tensors take milliseconds.
        torch._foreach_copy_(
            [tensor.data for tensor in group],
            [shaped(part, tensor) for tensor, part in zip(group, parts, strict=True)],
        )


def align_tensors(transport: Transport, tensors: Sequence[torch.Tensor]) -> None:
    """Overwrite ``tensors`` with those of rank 0, unless all ranks have the same.

    On CPUs digests tell: a model takes seconds to cross a slow network, and ranks that
    draw it with the same seed have the same. Devices are not waited for.
    """
    if transport.world_size == 1:
        return
    if transport.device.type == "cpu":
        digests = transport.gather_objects(sha256_of(tensors))
        if digests.count(digests[0]) == len(digests):
            return
    broadcast_tensors(transport, tensors)


def sha256_of(tensors: Sequence[torch.Tensor]) -> str:
    """Return the SHA-256 of the bytes of ``tensors``, to compare them bit by bit."""
    digest = hashlib.sha256()
    for tensor in tensors:
        whole = flat(tensor).cpu().contiguous()  # of one dimension it may have gaps
        digest.update(whole.view(torch.uint8).numpy().data)
    return digest.hexdigest()
