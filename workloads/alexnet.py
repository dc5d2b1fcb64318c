"""AlexNet for 224x224 images.

Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014:
the form on one device, 61 million parameters. The data are random.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from comm_plan.workloads.base import Workload
from comm_plan.workloads.data import cross_entropy, random_images


class AlexNet(nn.Module):
    """Five convolutions and three linear layers, for [N, 3, 224, 224]."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes]."""
        logits: torch.Tensor = self.classifier(self.features(x).flatten(1))
        return logits


def alexnet(*, batch_size: int = 64) -> Workload:
    """Return AlexNet on random 224x224 images, trained as in gTop-k's Table V."""
    return Workload(
        name="alexnet",
        model=AlexNet(),
        optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        batch_size=batch_size,
        batches=random_images(batch_size, size=224, classes=1000),
        loss=cross_entropy,
    )
