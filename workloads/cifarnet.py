"""CifarNet: the small network of TensorFlow's CIFAR-10 tutorial, 1,068,298 parameters.

After Krizhevsky's cuda-convnet; the TernGrad paper trains it in section 4.1 on crops of
24x24 pixels. CIFAR-10 is read where it is given; else the data are random.

Differences from the paper: brightness and contrast are not changed at random, images
are scaled by the mean and deviation of the whole training set rather than their own,
and the parameters are judged as they are, not their moving average.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import nn

from comm_plan.workloads.base import Workload
from comm_plan.workloads.images import CIFAR10, Crop

CROP = Crop(24, mirror=True)


class CifarNet(nn.Module):
    """Two convolutions and three linear layers, for [N, 3, 24, 24]."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        norm = partial(nn.LocalResponseNorm, 9, alpha=0.001, beta=0.75)
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
            norm(),
            nn.Conv2d(64, 64, 5, padding=2),
            nn.ReLU(inplace=True),
            norm(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.classifier = nn.Sequential(
            nn.Linear(64 * 6 * 6, 384),
            nn.ReLU(inplace=True),
            nn.Linear(384, 192),
            nn.ReLU(inplace=True),
            nn.Linear(192, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes]."""
        logits: torch.Tensor = self.classifier(self.features(x).flatten(1))
        return logits


def cifarnet(
    *, batch_size: int = 64, data: Path | None = None, augment: bool = True
) -> Workload:
    """Return CifarNet on CIFAR-10, with Adam as in TernGrad's Table 1, 2 workers.

    300,000 steps of 128 images are 768 epochs.
    """
    return CIFAR10.classified_by(
        CifarNet(),
        partial(torch.optim.Adam, lr=0.0002),
        name="cifarnet",
        folder=data,
        batch_size=batch_size,
        crop=CROP,
        augment=augment,
        epochs=768,
    )
