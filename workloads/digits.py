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
from comm_plan.workloads.data import (
    cross_entropy,
    device_of,
    evaluating,
    random_stream,
    shards,
)

MAX_PIXEL = 16.0


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


def _images_and_labels() -> tuple[torch.Tensor, torch.Tensor]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise WorkloadError(
            "workload digits needs scikit-learn: pip install 'comm-plan[workloads]'"
        ) from None
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32) / MAX_PIXEL
    return images.unsqueeze(1), torch.tensor(data.target, dtype=torch.int64)


def digits(*, batch_size: int = 32) -> Workload:
    """Return the handwritten digits, whose metric is held-out accuracy."""
    images, labels = _images_and_labels()
    order = torch.randperm(len(images), generator=random_stream(0, 0))
    held_out, training = order[: len(order) // 5], order[len(order) // 5 :]

    def evaluate(model: nn.Module) -> tuple[str, float]:
        with evaluating(model):
            guess = model(images[held_out].to(device_of(model))).argmax(1).cpu()
        return "accuracy", (guess == labels[held_out]).double().mean().item()

    return Workload(
        name="digits",
        model=DigitsNet(),
        optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        batch_size=batch_size,
        batches=shards(images[training], labels[training], batch_size=batch_size),
        loss=cross_entropy,
        evaluate=evaluate,
        epochs=20,
    )
