"""A GPT-2 with the Trainer of Hugging Face Transformers, made from a configuration.

OMP_NUM_THREADS=1 python examples/with_transformers.py profile    # writes profile.json
torchrun --nproc-per-node 2 examples/with_transformers.py plan.json

What comes between them is as in ``gpt.py``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import comm_plan
from comm_plan.integrations.transformers import use_plan

CONTEXT = 32
TEXT = Path(__file__).read_bytes()


def model() -> GPT2LMHeadModel:
    """Return a small GPT-2 of bytes."""
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=256, n_embd=48, n_layer=2, n_head=4, n_positions=CONTEXT)
    )


def passages() -> list[dict[str, torch.Tensor]]:
    """Return pieces of this file."""
    starts = range(0, len(TEXT) - CONTEXT, 4)
    pieces = [torch.tensor([*TEXT[start : start + CONTEXT]]) for start in starts]
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


def trainer(folder: str, steps: int, **options: Any) -> Trainer:
    """Return a trainer of so many steps."""
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **options,
    )
    return Trainer(model(), arguments, train_dataset=passages())


def main(how: str) -> None:
    """Profile the model, or train it by a plan."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        if how == "profile":
            alone = trainer(folder, 20)
            assert alone.model is not None
            with comm_plan.profile(alone.model, "profile.json"):
                alone.train()
            return
        training = trainer(folder, 60)
        use_plan(training, how)  # the one line
        loss = training.train().training_loss
        if training.is_world_process_zero():
            print(f"mean loss {loss:.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
