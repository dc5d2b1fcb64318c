"""A convolutional network of about 10 million parameters that really computes.

On random images, where only time counts, and on handwritten digits, which it learns.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import interpolate

from comm_plan.workloads import digits as small
from comm_plan.workloads.base import Workload
from comm_plan.workloads.data import cross_entropy, random_images

CNN = f"{Path(__file__)}:make"
CNN_DIGITS = f"{Path(__file__)}:digits"
"""What the commands call them."""

CLASSES = 10
SIZE = 32
BATCH = 8
CHANNELS = (64, 128, 256, 512, 512)
HIDDEN = 2048


class Cnn(nn.Module):
    """Five convolutions, each halving the image, and two linear layers.

    Args:
        channels: of the images.
    """

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = channels
        for after in CHANNELS:
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(after, after, 1), nn.ReLU(), nn.MaxPool2d(2)]
            before = after
        self.features = nn.Sequential(*layers)
        self.hidden = nn.Linear(before, HIDDEN)
        self.middle = nn.Linear(HIDDEN, HIDDEN)
        self.last = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, 10] of images [N, channels, 32, 32]."""
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


class DigitsCnn(Cnn):
    """The same for handwritten digits, which are enlarged, with He's initialisation.

    With PyTorch's own the signal fades before the last layer, and it learns nothing.
    """

    def __init__(self) -> None:
        super().__init__(channels=1)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, 10] of images [N, 1, 8, 8]."""
        return super().forward(interpolate(x, size=SIZE, mode="bilinear"))


def digits(*, batch_size: int = BATCH) -> Workload:
    """Return the workload: digits, whose metric is held-out accuracy."""
    return replace(
        small.digits(batch_size=batch_size),
        name="cnn-digits",
        model=DigitsCnn(),
        optimizer=partial(torch.optim.SGD, lr=0.005, momentum=0.9),
    )
