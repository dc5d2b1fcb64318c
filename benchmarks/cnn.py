"""A convolutional network of about 10 million parameters that really computes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import nn

from comm_plan.workloads.base import Workload
from comm_plan.workloads.data import cross_entropy, random_images

CNN = f"{Path(__file__)}:make"
"""What the commands call it."""

CLASSES = 10
SIZE = 32
BATCH = 8
CHANNELS = (64, 128, 256, 512, 512)
HIDDEN = 2048


class Cnn(nn.Module):
    """Five convolutions, each halving the image, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for channels in CHANNELS:
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(channels, channels, 1), nn.ReLU(), nn.MaxPool2d(2)]
            before = channels
        self.features = nn.Sequential(*layers)
        self.hidden = nn.Linear(before, HIDDEN)
        self.middle = nn.Linear(HIDDEN, HIDDEN)
        self.last = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, 10] of images [N, 3, 32, 32]."""
        x = self.features(x).flatten(1)
        logits: torch.Tensor = self.last(self.middle(self.hidden(x).relu()).relu())
        return logits


def make(*, batch_size: int = BATCH) -> Workload:
    """Return the workload: random images."""
    return Workload(
        name="cnn",
        model=Cnn(),
        optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        batch_size=batch_size,
        batches=random_images(batch_size, SIZE, CLASSES),
        loss=cross_entropy,
    )
