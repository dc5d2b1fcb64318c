"""Inception-v4 for 299x299 images.

Szegedy, Ioffe, Vanhoucke, Alemi, "Inception-v4, Inception-ResNet and the Impact of
Residual Connections on Learning", AAAI 2017, Figures 3 to 9. The data are random.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from comm_plan.workloads.base import Workload
from comm_plan.workloads.data import cross_entropy, random_images

KernelSize = int | tuple[int, int]


class Conv(nn.Sequential):
    """Convolution, batch normalisation, ReLU; keeps the image's size by default."""

    def __init__(
        self, channels: int, out_channels: int, size: KernelSize, *, valid: int = 0
    ) -> None:
        """Make the layer; ``valid`` is the stride of one without padding, 0: pad."""
        height, width = (size, size) if isinstance(size, int) else size
        super().__init__(
            nn.Conv2d(
                channels,
                out_channels,
                (height, width),
                stride=valid or 1,
                padding=0 if valid else (height // 2, width // 2),
                bias=False,
            ),
            nn.BatchNorm2d(out_channels, eps=0.001),
            nn.ReLU(inplace=True),
        )


class Branches(nn.ModuleList):
    """Modules over one input whose outputs are concatenated."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [N, C, H, W] to [N, sum of the branches' channels, H', W']."""
        return torch.cat([branch(x) for branch in self], 1)


def _chain(channels: int, *layers: tuple[int, KernelSize]) -> list[nn.Module]:
    """Return convolutions one after the other, each (output channels, size)."""
    chain: list[nn.Module] = []
    for out_channels, size in layers:
        chain.append(Conv(channels, out_channels, size))
        channels = out_channels
    return chain


def _pooled(channels: int, out_channels: int) -> nn.Module:
    pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
    return nn.Sequential(pool, Conv(channels, out_channels, 1))


def _stem() -> nn.Module:
    """Figure 3: [N, 3, 299, 299] to [N, 384, 35, 35]."""
    left = nn.Sequential(Conv(64 + 96, 64, 1), Conv(64, 96, 3, valid=1))
    right = nn.Sequential(
        *_chain(64 + 96, (64, 1), (64, (1, 7)), (64, (7, 1))), Conv(64, 96, 3, valid=1)
    )
    return nn.Sequential(
        Conv(3, 32, 3, valid=2),
        Conv(32, 32, 3, valid=1),
        Conv(32, 64, 3),
        Branches([nn.MaxPool2d(3, stride=2), Conv(64, 96, 3, valid=2)]),
        Branches([left, right]),
        Branches([Conv(192, 192, 3, valid=2), nn.MaxPool2d(3, stride=2)]),
    )


def _inception_a() -> nn.Module:
    """Figure 4."""
    return Branches(
        [
            Conv(384, 96, 1),
            nn.Sequential(*_chain(384, (64, 1), (96, 3))),
            nn.Sequential(*_chain(384, (64, 1), (96, 3), (96, 3))),
            _pooled(384, 96),
        ]
    )


def _reduction_a() -> nn.Module:
    """Figure 7 with k, l, m, n = 192, 224, 256, 384 (Table 1)."""
    middle = [*_chain(384, (192, 1), (224, 3)), Conv(224, 256, 3, valid=2)]
    return Branches(
        [
            Conv(384, 384, 3, valid=2),
            nn.Sequential(*middle),
            nn.MaxPool2d(3, stride=2),
        ]
    )


def _inception_b() -> nn.Module:
    """Figure 5."""
    deep: list[tuple[int, KernelSize]] = [
        (192, 1),
        (192, (7, 1)),
        (224, (1, 7)),
        (224, (7, 1)),
        (256, (1, 7)),
    ]
    return Branches(
        [
            Conv(1024, 384, 1),
            nn.Sequential(*_chain(1024, (192, 1), (224, (1, 7)), (256, (7, 1)))),
            nn.Sequential(*_chain(1024, *deep)),
            _pooled(1024, 128),
        ]
    )


def _reduction_b() -> nn.Module:
    """Figure 8."""
    right = [*_chain(1024, (256, 1), (256, (1, 7)), (320, (7, 1)))]
    return Branches(
        [
            nn.Sequential(Conv(1024, 192, 1), Conv(192, 192, 3, valid=2)),
            nn.Sequential(*right, Conv(320, 320, 3, valid=2)),
            nn.MaxPool2d(3, stride=2),
        ]
    )


def _forked(channels: int) -> nn.Module:
    return Branches([Conv(channels, 256, (1, 3)), Conv(channels, 256, (3, 1))])


def _inception_c() -> nn.Module:
    """Figure 6."""
    deep = _chain(1536, (384, 1), (448, (3, 1)), (512, (1, 3)))
    return Branches(
        [
            Conv(1536, 256, 1),
            nn.Sequential(Conv(1536, 384, 1), _forked(384)),
            nn.Sequential(*deep, _forked(512)),
            _pooled(1536, 256),
        ]
    )


class InceptionV4(nn.Module):
    """Figure 9: 4, 7 and 3 inception modules, for [N, 3, 299, 299]."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = _stem()
        self.a = nn.Sequential(*(_inception_a() for _ in range(4)), _reduction_a())
        self.b = nn.Sequential(*(_inception_b() for _ in range(7)), _reduction_b())
        self.c = nn.Sequential(*(_inception_c() for _ in range(3)))
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(1536, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes]."""
        x = self.c(self.b(self.a(self.stem(x)))).mean((2, 3))
        logits: torch.Tensor = self.fc(self.dropout(x))
        return logits


def inception_v4(*, batch_size: int = 32) -> Workload:
    """Return Inception-v4 on random 299x299 images, as in the LAGS paper."""
    return Workload(
        name="inception-v4",
        model=InceptionV4(),
        optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        batch_size=batch_size,
        batches=random_images(batch_size, size=299, classes=1000),
        loss=cross_entropy,
    )
