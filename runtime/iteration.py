"""One timed iteration of a workload: what every measurement of training means by it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from comm_plan.runtime.second_moments.batch import cut
from comm_plan.workloads.base import Loss


def iterate(
    loss: Loss,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Any,
    *,
    micro_batches: int = 1,
    no_sync: Callable[[], AbstractContextManager[None]] = nullcontext,
    meet: Callable[[], None] = lambda: None,
) -> tuple[float, float]:
    """Do one step; return its loss and its seconds.

    The seconds count from ``zero_grad`` to the end of the optimizer's step, on CUDA to
    the end of the device's work.

    Args:
        loss: of the model on a batch.
        model: what is trained.
        optimizer: of the model.
        batch: one of its batches.
        micro_batches: into how many the batch is cut, each with a backward of its own.
        no_sync: what all of them but the last run in.
        meet: called after backward, to wait for the other ranks; its seconds count.

    Raises:
        MismatchError: the batch cannot be cut so.
    """
    start_s = time.perf_counter()
    optimizer.zero_grad()
    *first, last = cut(batch, micro_batches)
    losses = []
    for part in first:
        with no_sync():
            losses.append(_backward(loss, model, part, micro_batches))
    losses.append(_backward(loss, model, last, micro_batches))
    meet()
    optimizer.step()
    total = torch.stack(losses).sum()
    if total.device.type == "cuda":
        torch.cuda.synchronize(total.device)
    seconds = time.perf_counter() - start_s
    return total.item(), seconds


def _backward(
    loss: Loss, model: nn.Module, batch: Any, micro_batches: int
) -> torch.Tensor:
    """Return this part of the batch's loss, after its backward."""
    own = loss(model, batch) / micro_batches
    own.backward()
    return own.detach()
