"""The network of ``images.py`` in Lightning.

OMP_NUM_THREADS=1 python examples/with_lightning.py profile       # writes profile.json
torchrun --nproc-per-node 2 examples/with_lightning.py plan.json

What comes between them is as in ``gpt.py``.
"""

from __future__ import annotations

import sys
from typing import Any

import lightning
import torch
from images import BATCH, accuracy, network, stripes
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import comm_plan
from comm_plan.integrations.lightning import PlanStrategy

EPOCHS = 4
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
}


class Stripes(lightning.LightningModule):  # type: ignore[misc]
    """The network, its loss and its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(
        self, batch: tuple[torch.Tensor, torch.Tensor], index: int
    ) -> torch.Tensor:
        """Return the loss."""
        images, labels = batch
        return cross_entropy(self.network(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main(how: str) -> None:
    """Profile the module, or train it by a plan."""
    torch.manual_seed(0)
    module = Stripes()
    data = TensorDataset(*stripes(800, torch.Generator().manual_seed(1)))
    batches = DataLoader(data, BATCH, shuffle=True)
    if how == "profile":
        alone = lightning.Trainer(devices=1, accelerator="cpu", max_steps=20, **QUIET)
        with comm_plan.profile(module, "profile.json"):
            alone.fit(module, batches)
        return
    trainer = lightning.Trainer(
        strategy=PlanStrategy(how),  # in place of "ddp"
        accelerator="cpu",
        devices=2,
        max_epochs=EPOCHS,
        **QUIET,
    )
    trainer.fit(module, batches)
    if trainer.is_global_zero:
        print(f"accuracy {accuracy(module.network):.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
