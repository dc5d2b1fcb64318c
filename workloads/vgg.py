"""VGG-16 for 224x224 images, and its usual small form for 32x32 images.

Simonyan, Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
Recognition", ICLR 2015, Table 1, column D. The data are random.

Differences from the paper: the form for CIFAR-10, which the gTop-k and LAGS papers
train, has batch normalisation and one linear layer of 512 inputs instead of three.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from comm_plan.workloads.base import Workload
from comm_plan.workloads.data import cross_entropy, random_images

_WIDTHS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
"""Output channels of each convolution of column D; 0 is a 2x2 max-pooling."""


def _features(batch_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for width in _WIDTHS:
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers.append(nn.Conv2d(channels, width, 3, padding=1))
        if batch_norm:
            layers.append(nn.BatchNorm2d(width))
        layers.append(nn.ReLU(inplace=True))
        channels = width
    return nn.Sequential(*layers)


class Vgg16(nn.Module):
    """Thirteen convolutions and three linear layers, for [N, 3, 224, 224]."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.features = _features(batch_norm=False)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes]."""
        logits: torch.Tensor = self.classifier(self.features(x).flatten(1))
        return logits


class Vgg16Cifar(nn.Module):
    """Thirteen convolutions and one linear layer, for [N, 3, 32, 32]."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = _features(batch_norm=True)
        self.classifier = nn.Linear(512, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes]."""
        logits: torch.Tensor = self.classifier(self.features(x).flatten(1))
        return logits


def vgg16(*, batch_size: int = 128) -> Workload:
    """Return VGG-16 on random 32x32 images, trained as in gTop-k's Table V."""
    return Workload(
        name="vgg16",
        model=Vgg16Cifar(),
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        batch_size=batch_size,
        batches=random_images(batch_size, size=32, classes=10),
        loss=cross_entropy,
    )


def vgg16_imagenet(*, batch_size: int = 32) -> Workload:
    """Return VGG-16 on random 224x224 images: VGG-16I of the LAGS paper."""
    return Workload(
        name="vgg16-imagenet",
        model=Vgg16(),
        optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        batch_size=batch_size,
        batches=random_images(batch_size, size=224, classes=1000),
        loss=cross_entropy,
    )
