"""A residual network with batch norm that tells stripes apart, with an evaluation.

::

    OMP_NUM_THREADS=1 python examples/images.py profile
    torchrun --nproc-per-node 2 examples/images.py plan.json

What comes between them is as in ``gpt.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import comm_plan

CLASSES, SIZE, BATCH, MICRO_BATCHES = 4, 12, 16, 2


class Residual(nn.Module):
    """Two convolutions beside what they are added to."""

    def __init__(self, before: int, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(before, channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut = nn.Conv2d(before, channels, 1, stride=2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [N, channels, H / 2, W / 2] of ``x`` [N, before, H, W]."""
        result: torch.Tensor = (self.layers(x) + self.shortcut(x)).relu()
        return result


def network() -> nn.Sequential:
    """Return the model."""
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES))
    return nn.Sequential(Residual(1, 16), Residual(16, 32), *head)


def stripes(
    number: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noisy images [N, 1, SIZE, SIZE] and the direction of their stripes."""
    labels = torch.randint(CLASSES, (number,), generator=generator)
    angle = labels[:, None, None] * (torch.pi / CLASSES)
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    images = torch.sin(angle.cos() * x + angle.sin() * y)
    noise = torch.randn(images.shape, generator=generator)
    return (images + 0.5 * noise)[:, None], labels


def train(
    model: nn.Module,
    steps: int,
    no_sync: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[float]:
    """Train and return the loss of each step."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    order = torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model.train()
    losses = []
    for _ in range(steps):
        images, labels = stripes(BATCH, order)
        parts = (each.chunk(MICRO_BATCHES) for each in (images, labels))
        optimizer.zero_grad()
        total = 0.0
        for number, (inputs, targets) in enumerate(zip(*parts, strict=True), start=1):
            with nullcontext() if number == MICRO_BATCHES else no_sync():
                loss = cross_entropy(model(inputs), targets) / MICRO_BATCHES
                loss.backward()
                total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """Return the share of new images that ``model`` tells right."""
    images, labels = stripes(256, torch.Generator().manual_seed(99))
    model.eval()
    right: torch.Tensor = model(images).argmax(1) == labels
    return right.float().mean().item()


def main(how: str) -> None:
    """Profile the model, or train it by a plan or by DDP."""
    torch.manual_seed(0)
    model = network()
    if how == "profile":
        with comm_plan.profile(model, "profile.json"):
            train(model, 20)
        return
    dist.init_process_group("gloo")
    if how == "ddp":
        wrapped = DistributedDataParallel(model)
        train(wrapped, 100, wrapped.no_sync)
    else:
        engine = comm_plan.parallelize(model, how)
        train(model, 100, engine.no_sync)
    if dist.get_rank() == 0:
        print(f"accuracy {accuracy(model):.1%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
