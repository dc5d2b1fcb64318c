"""VGG-16 for 224x224 images, and its usual small form for 32x32 images.

Simonyan, Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
Recognition", ICLR 2015, Table 1, column D. CIFAR-10 is read where it is given; else the
data are random.

Differences from the paper: the form for CIFAR-10, on which the gTop-k and LAGS papers
train VGG-16 (which form, they do not say), has batch normalisation and one linear layer
of 512 inputs instead of three. That of the VGC paper's appendix D has two, dropout in
many places, and biases in the normalisation only.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from comm_plan.workloads.base import Workload
from comm_plan.workloads.data import cross_entropy, random_images
from comm_plan.workloads.images import AS_USUAL, CIFAR10

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


def _features_with_dropout() -> nn.Sequential:
    """Dropout behind every convolution but the last before a pooling."""
    layers: list[nn.Module] = []
    channels = 3
    for width, following in pairwise((*_WIDTHS, 0)):
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [
            nn.Conv2d(channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        ]
        if following != 0:
            layers.append(nn.Dropout(0.3 if width == 64 else 0.4))
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


class Vgg16Dropout(nn.Module):
    """Thirteen convolutions, two linear layers and dropout, for [N, 3, 32, 32]."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = _features_with_dropout()
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(512, 512, bias=False),
            nn.BatchNorm1d(512),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(512, classes, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes]."""
        logits: torch.Tensor = self.classifier(self.features(x).flatten(1))
        return logits


def vgg16(
    *, batch_size: int = 128, data: Path | None = None, augment: bool = True
) -> Workload:
    """Return VGG-16 on CIFAR-10, trained as in gTop-k's Table V."""
    return CIFAR10.classified_by(
        Vgg16Cifar(),
        partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        name="vgg16",
        folder=data,
        batch_size=batch_size,
        crop=AS_USUAL,
        augment=augment,
        epochs=140,
    )


def vgg16_dropout(
    *, batch_size: int = 64, data: Path | None = None, augment: bool = False
) -> Workload:
    """Return the VGG of the VGC paper on CIFAR-10, trained as in its section 6.1."""
    return CIFAR10.classified_by(
        Vgg16Dropout(),
        partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.0005),
        name="vgg16-dropout",
        folder=data,
        batch_size=batch_size,
        crop=AS_USUAL,
        augment=augment,
        epochs=300,
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
