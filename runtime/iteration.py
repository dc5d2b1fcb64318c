"""One timed iteration of a workload: what every measurement of training means by it."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from comm_plan.workloads.base import Workload


def iterate(
    workload: Workload, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any
) -> tuple[float, float]:
    """Do one step; return its loss and its seconds.

    The seconds count from ``zero_grad`` to the end of the optimizer's step, on CUDA to
    the end of the device's work.
    """
    start_s = time.perf_counter()
    optimizer.zero_grad()
    loss = workload.loss(model, batch)
    loss.backward()
    optimizer.step()
    if loss.device.type == "cuda":
        torch.cuda.synchronize(loss.device)
    seconds = time.perf_counter() - start_s
    return loss.item(), seconds
