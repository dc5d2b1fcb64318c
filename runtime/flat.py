"""Several tensors in one message."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from comm_plan.transports.base import Transport


def broadcast_tensors(
    transport: Transport, tensors: Sequence[torch.Tensor], root: int = 0
) -> None:
    """Overwrite ``tensors`` with those of rank ``root``: one broadcast per dtype."""
    if transport.world_size == 1:
        return
    by_kind: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]]
    by_kind = defaultdict(list)
    for tensor in tensors:
        by_kind[tensor.dtype, tensor.device].append(tensor.detach())
    for group in by_kind.values():
        flat = torch.cat([tensor.flatten() for tensor in group])
        transport.broadcast(flat, root)
        parts = flat.split([tensor.numel() for tensor in group])
        for tensor, part in zip(group, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))
