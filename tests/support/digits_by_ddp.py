"""The digits workload in float64, and PyTorch DDP training it.

In float32 the order of a sum of four gradients decides, sooner or later, whether some
ReLU or max-pool takes the one side or the other: within 50 steps parameters may part by
3e-4, without anything being wrong. In float64 they agree to 1e-12.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from comm_plan.transports.distributed import TorchTransport
from comm_plan.workloads import load
from comm_plan.workloads.base import Workload


def in_double() -> Workload:
    """Return the digits workload with parameters and images in float64."""
    single = load("digits")

    def batches(*of_epoch: int) -> Iterator[Any]:
        for images, labels in single.batches(*of_epoch):
            yield images.double(), labels

    return replace(
        single,
        name="digits in double",
        model=single.model.double(),
        batches=batches,
        evaluate=lambda model: None,
    )


def train(transport: TorchTransport, steps: int, seed: int) -> dict[str, torch.Tensor]:
    """Return DDP's parameters after ``steps`` steps on the ranks of ``transport``."""
    workload = in_double()
    model = DistributedDataParallel(workload.model, process_group=transport._group)
    optimizer = workload.optimizer(model.parameters())
    done = epoch = 0
    while done < steps:
        shard = workload.batches(transport.rank, transport.world_size, epoch, seed)
        for _, batch in zip(range(steps - done), shard, strict=False):
            optimizer.zero_grad()
            workload.loss(model, batch).backward()
            optimizer.step()
            done += 1
        epoch += 1
    return {name: p.detach().clone() for name, p in model.module.named_parameters()}
