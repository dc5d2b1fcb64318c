"""A workload of your own, for the verbs that run a model.

::

    comm-plan profile examples/workload.py:spirals --local-ranks 2 -o profile.json
    comm-plan train examples/workload.py:spirals --plan plan.json --local-ranks 2
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ARMS = 3


def spiral_points(per_arm: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points [N, 2] on three spirals, and the arm of each [N]."""
    radius = torch.linspace(0.1, 1, per_arm).repeat(ARMS)
    labels = torch.arange(ARMS).repeat_interleave(per_arm)
    angle = 4 * radius + labels * (2 * torch.pi / ARMS)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), labels


def classifier() -> nn.Sequential:
    """Return a small perceptron."""
    layers = (nn.Linear(2, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(128, ARMS))


def spirals(
    batch_size: int = 64,
) -> tuple[nn.Module, DataLoader[Any], nn.Module, torch.optim.Optimizer]:
    """Return model, data, loss and optimizer."""
    model = classifier()
    data = DataLoader(TensorDataset(*spiral_points()), batch_size=batch_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, data, nn.CrossEntropyLoss(), optimizer
