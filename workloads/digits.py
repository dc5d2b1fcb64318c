"""Handwritten digits that come with scikit-learn, and a small convolutional network.

1797 images of 8x8 pixels in 10 classes; a fifth is held out, the same for every seed.
Nothing is downloaded and training takes seconds on a CPU.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from comm_plan.errors import WorkloadError
from comm_plan.workloads.base import Workload
from comm_plan.workloads.data import cross_entropy
from comm_plan.workloads.files import Labelled
from comm_plan.workloads.images import Crop, Scale, fifth_held_out, labelled

SCALE = Scale(16.0, (0.0,), (1.0,))
CROP = Crop(8, pad=1)


class DigitsNet(nn.Module):
    """Two convolutions and two linear layers, for [N, 1, 8, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(64 * 4 * 4, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, 10]."""
        x = self.conv2(self.conv1(x).relu()).relu()
        logits: torch.Tensor = self.fc2(self.fc1(self.pool(x).flatten(1)).relu())
        return logits


def _images() -> Labelled:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise WorkloadError(
            "workload digits needs scikit-learn: pip install 'comm-plan[workloads]'"
        ) from None
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1)
    return Labelled(images, torch.tensor(data.target, dtype=torch.int64))


def digits(*, batch_size: int = 32, augment: bool = False) -> Workload:
    """Return the handwritten digits, whose metric is held-out accuracy.

    ``augment`` shifts images by up to a pixel.
    """
    training, held_out = fifth_held_out(_images())
    source = labelled(training, held_out, batch_size, SCALE, CROP, augment)
    return Workload(
        name="digits",
        model=DigitsNet(),
        optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        batch_size=batch_size,
        batches=source.batches,
        loss=cross_entropy,
        evaluate=source.evaluate,
        epochs=20,
    )
