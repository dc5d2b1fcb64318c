"""GoogLeNet for 224x224 images, with its two auxiliary classifiers.

Szegedy et al., "Going Deeper with Convolutions", CVPR 2015, Table 1 and section 5, in
the form that Caffe trains and the MG-WFBP paper measures: 13 million parameters, no
batch normalisation. The data are random.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from comm_plan.workloads.base import Workload
from comm_plan.workloads.data import device_of, random_images

AUXILIARY_WEIGHT = 0.3
"""How much each auxiliary classifier's loss counts (section 5 of the paper)."""


def _conv(channels: int, out_channels: int, size: int, **options: Any) -> nn.Sequential:
    convolution = nn.Conv2d(channels, out_channels, size, **options)
    return nn.Sequential(convolution, nn.ReLU(inplace=True))


def _pool(stride: int) -> nn.Module:
    return nn.MaxPool2d(
        3, stride=stride, padding=1 if stride == 1 else 0, ceil_mode=True
    )


class Inception(nn.Module):
    """Four parallel branches, concatenated."""

    def __init__(
        self,
        channels: int,
        ones: int,
        threes: tuple[int, int],
        fives: tuple[int, int],
        pooled: int,
    ) -> None:
        super().__init__()
        self.ones = _conv(channels, ones, 1)
        self.threes = nn.Sequential(
            _conv(channels, threes[0], 1), _conv(*threes, 3, padding=1)
        )
        self.fives = nn.Sequential(
            _conv(channels, fives[0], 1), _conv(*fives, 5, padding=2)
        )
        self.pooled = nn.Sequential(_pool(stride=1), _conv(channels, pooled, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [N, C, H, W] to [N, C', H, W]."""
        branches = (self.ones, self.threes, self.fives, self.pooled)
        return torch.cat([branch(x) for branch in branches], 1)


class Auxiliary(nn.Module):
    """A classifier halfway up, used in training only."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv = _conv(channels, 128, 1)
        self.fc1 = nn.Linear(128 * 4 * 4, 1024)
        self.fc2 = nn.Linear(1024, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [N, C, 14, 14] to logits [N, classes]."""
        x = self.conv(F.avg_pool2d(x, 5, stride=3)).flatten(1)
        logits: torch.Tensor = self.fc2(
            F.dropout(F.relu(self.fc1(x)), 0.7, self.training)
        )
        return logits


class GoogLeNet(nn.Module):
    """Nine inception modules, for [N, 3, 224, 224]."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _conv(3, 64, 7, stride=2, padding=3),
            _pool(stride=2),
            nn.LocalResponseNorm(5),
            _conv(64, 64, 1),
            _conv(64, 192, 3, padding=1),
            nn.LocalResponseNorm(5),
            _pool(stride=2),
        )
        self.lower = nn.Sequential(
            Inception(192, 64, (96, 128), (16, 32), 32),
            Inception(256, 128, (128, 192), (32, 96), 64),
            _pool(stride=2),
            Inception(480, 192, (96, 208), (16, 48), 64),
        )
        self.middle = nn.Sequential(
            Inception(512, 160, (112, 224), (24, 64), 64),
            Inception(512, 128, (128, 256), (24, 64), 64),
            Inception(512, 112, (144, 288), (32, 64), 64),
        )
        self.upper = nn.Sequential(
            Inception(528, 256, (160, 320), (32, 128), 128),
            _pool(stride=2),
            Inception(832, 256, (160, 320), (32, 128), 128),
            Inception(832, 384, (192, 384), (48, 128), 128),
        )
        self.fc = nn.Linear(1024, classes)
        self.auxiliary1 = Auxiliary(512, classes)
        self.auxiliary2 = Auxiliary(528, classes)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return logits [N, classes], and in training those of the auxiliaries."""
        lower = self.lower(self.stem(x))
        middle = self.middle(lower)
        upper = self.upper(middle).mean((2, 3))
        logits = self.fc(F.dropout(upper, 0.4, self.training))
        if not self.training:
            return (logits,)
        return logits, self.auxiliary1(lower), self.auxiliary2(middle)


def _loss(model: nn.Module, batch: Any) -> torch.Tensor:
    images, labels = (part.to(device_of(model)) for part in batch)
    main, *auxiliary = (F.cross_entropy(logits, labels) for logits in model(images))
    return main + AUXILIARY_WEIGHT * sum(auxiliary)


def googlenet(*, batch_size: int = 64) -> Workload:
    """Return GoogLeNet on random 224x224 images, as in the MG-WFBP paper."""
    return Workload(
        name="googlenet",
        model=GoogLeNet(),
        optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        batch_size=batch_size,
        batches=random_images(batch_size, size=224, classes=1000),
        loss=_loss,
    )
