"""One timed iteration of a workload: what every measurement of training means by it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from comm_plan.runtime.second_moments.batch import cut
from comm_plan.workloads.base import Workload


def iterate(
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Any,
    *,
    micro_batches: int = 1,
    no_sync: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> tuple[float, float]:
    """Do one step; return its loss and its seconds.

    The seconds count from ``zero_grad`` to the end of the optimizer's step, on CUDA to
    the end of the device's work.

    Args:
        workload: what is trained.
        model: its model.
        optimizer: of the model.
        batch: one of its batches.
        micro_batches: into how many the batch is cut, each with a backward of its own.
        no_sync: what all of them but the last run in.

    Raises:
        MismatchError: the batch cannot be cut so.
    """
    start_s = time.perf_counter()
    optimizer.zero_grad()
    *first, last = cut(batch, micro_batches)
    losses = []
    for part in first:
        with no_sync():
            losses.append(_backward(workload, model, part, micro_batches))
    losses.append(_backward(workload, model, last, micro_batches))
    optimizer.step()
    loss = torch.stack(losses).sum()
    if loss.device.type == "cuda":
        torch.cuda.synchronize(loss.device)
    seconds = time.perf_counter() - start_s
    return loss.item(), seconds


def _backward(
    workload: Workload, model: nn.Module, batch: Any, micro_batches: int
) -> torch.Tensor:
    """Return this part of the batch's loss, after its backward."""
    loss = workload.loss(model, batch) / micro_batches
    loss.backward()
    return loss.detach()
