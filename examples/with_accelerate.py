"""The network of ``images.py`` in Hugging Face Accelerate.

The plan is for that network: ``images.py profile`` profiles it; then as in ``gpt.py``.

torchrun --nproc-per-node 2 examples/with_accelerate.py plan.json
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from images import BATCH, accuracy, network, stripes
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from comm_plan.integrations.accelerate import use_plan

EPOCHS = 4


def main(plan: str) -> None:
    """Train by ``plan``."""
    accelerator = Accelerator(cpu=True)
    use_plan(accelerator, plan)  # the one line
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = TensorDataset(*stripes(800, torch.Generator().manual_seed(1)))
    batches = DataLoader(data, BATCH, shuffle=True)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    for _ in range(EPOCHS):
        for images, labels in batches:
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(model(images), labels))
            optimizer.step()
    accelerator.print(f"accuracy {accuracy(accelerator.unwrap_model(model)):.1%}")
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
