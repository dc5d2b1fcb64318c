"""LeNet for MNIST, as in Caffe: 431,080 parameters.

LeCun, Bottou, Bengio, Haffner, "Gradient-Based Learning Applied to Document
Recognition", Proc. IEEE, 1998, in the form that Caffe made common, with ReLU and
max-pooling. The TernGrad paper trains it in section 4.1. MNIST is read where it is
given; else the data are random.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import nn

from comm_plan.workloads.base import Workload
from comm_plan.workloads.images import MNIST, Crop


class LeNet(nn.Module):
    """Two convolutions and two linear layers, for [N, 1, 28, 28]."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 20, 5),
            nn.MaxPool2d(2),
            nn.Conv2d(20, 50, 5),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(50 * 4 * 4, 500), nn.ReLU(inplace=True), nn.Linear(500, classes)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes]."""
        logits: torch.Tensor = self.classifier(self.features(x).flatten(1))
        return logits


def lenet(
    *, batch_size: int = 64, data: Path | None = None, augment: bool = False
) -> Workload:
    """Return LeNet on MNIST, with momentum SGD as in TernGrad's Figure 3.

    ``augment`` shifts images by up to two pixels.
    """
    return MNIST.classified_by(
        LeNet(),
        partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=0.0005),
        name="lenet",
        folder=data,
        batch_size=batch_size,
        crop=Crop(28, pad=2),
        augment=augment,
        epochs=11,
    )
