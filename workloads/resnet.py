"""Residual networks: ResNet-20 for 32x32 images and ResNet-50 for 224x224 images.

He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016:
section 4.2 (CIFAR-10) and Table 1 (ImageNet). CIFAR-10 is read where it is given; else
the data are random.

Differences from the paper: ResNet-50 strides in the 3x3 convolution of a bottleneck,
as is customary ("v1.5"); the parameters are the same.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from comm_plan.workloads.base import Workload
from comm_plan.workloads.data import cross_entropy, random_images
from comm_plan.workloads.images import AS_USUAL, CIFAR10

conv3x3 = partial(nn.Conv2d, kernel_size=3, padding=1, bias=False)
conv1x1 = partial(nn.Conv2d, kernel_size=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters (option A)."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(channels, out_channels, stride=stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv3x3(out_channels, out_channels)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.stride = stride
        self.added = out_channels - channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [N, C, H, W] to [N, C', H / stride, W / stride]."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return F.relu(out + F.pad(shortcut, (0, 0, 0, 0, 0, self.added)))


class ResNet20(nn.Module):
    """6n + 2 layers with n = 3, for [N, 3, 32, 32]."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = conv3x3(3, 16)
        self.bn1 = nn.BatchNorm2d(16)
        widths = [16] * 3 + [32] * 3 + [64] * 3
        self.blocks = nn.Sequential(
            *(
                BasicBlock(before, width, stride=width // before)
                for before, width in zip([16, *widths], widths, strict=False)
            )
        )
        self.fc = nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes]."""
        x = self.blocks(F.relu(self.bn1(self.conv1(x))))
        logits: torch.Tensor = self.fc(x.mean((2, 3)))
        return logits


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions; a projection where the shape changes."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * self.expansion
        self.conv1 = conv1x1(channels, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride=stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv1x1(width, out_channels)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out_channels:
            self.shortcut = nn.Sequential(
                conv1x1(channels, out_channels, stride=stride),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [N, C, H, W] to [N, 4 * width, H / stride, W / stride]."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


class ResNet50(nn.Module):
    """Stages of 3, 4, 6 and 3 bottlenecks, for [N, 3, 224, 224]."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        stages = []
        channels = 64
        for width, blocks, stride in [
            (64, 3, 1),
            (128, 4, 2),
            (256, 6, 2),
            (512, 3, 2),
        ]:
            stage = []
            for index in range(blocks):
                stage.append(Bottleneck(channels, width, stride if index == 0 else 1))
                channels = width * Bottleneck.expansion
            stages.append(nn.Sequential(*stage))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes]."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: torch.Tensor = self.fc(x.mean((2, 3)))
        return logits


def resnet20(
    *, batch_size: int = 128, data: Path | None = None, augment: bool = True
) -> Workload:
    """Return ResNet-20 on CIFAR-10, trained as in gTop-k's Table V."""
    return CIFAR10.classified_by(
        ResNet20(),
        partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        name="resnet20",
        folder=data,
        batch_size=batch_size,
        crop=AS_USUAL,
        augment=augment,
        epochs=140,
    )


def resnet50(*, batch_size: int = 32) -> Workload:
    """Return ResNet-50 on random 224x224 images, as in the MG-WFBP and LAGS papers."""
    return Workload(
        name="resnet50",
        model=ResNet50(),
        optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        batch_size=batch_size,
        batches=random_images(batch_size, size=224, classes=1000),
        loss=cross_entropy,
    )
