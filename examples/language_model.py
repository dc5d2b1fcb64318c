"""An LSTM that predicts the words of this file, with its state handed on.

::

    OMP_NUM_THREADS=1 python examples/language_model.py profile
    torchrun --nproc-per-node 2 examples/language_model.py plan.json

What comes between them is as in ``gpt.py``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import comm_plan

WIDTH, LAYERS = 48, 2
BATCH, LENGTH, MICRO_BATCHES = 8, 10, 2
WORDS = re.findall(r"\w+|[^\w\s]", Path(__file__).read_text(encoding="utf-8"))
VOCABULARY = sorted(set(WORDS))

State = tuple[torch.Tensor, torch.Tensor]


class LanguageModel(nn.Module):
    """An embedding, an LSTM, and scores."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(len(VOCABULARY), WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, LAYERS, batch_first=True)
        self.scores = nn.Linear(WIDTH, len(VOCABULARY))

    def forward(
        self, words: torch.Tensor, state: State | None
    ) -> tuple[torch.Tensor, State]:
        """Return scores [N, T, words] of what follows ``words`` [N, T], and a state."""
        outputs, state = self.lstm(self.words(words), state)
        return self.scores(outputs), state


def train(
    model: nn.Module,
    steps: int,
    no_sync: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[float]:
    """Train and return the loss of each step."""
    text = torch.tensor([VOCABULARY.index(word) for word in WORDS])
    rank = dist.get_rank() if dist.is_initialized() else 0
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    begins = torch.arange(BATCH)[:, None] * (len(text) // BATCH) + 7 * rank
    states: list[State | None] = [None] * MICRO_BATCHES
    losses = []
    for step in range(steps):
        places = begins + LENGTH * step + torch.arange(LENGTH + 1)
        parts = text[places % len(text)].chunk(MICRO_BATCHES)
        optimizer.zero_grad()
        total = 0.0
        for number, part in enumerate(parts):
            with nullcontext() if number + 1 == MICRO_BATCHES else no_sync():
                scores, state = model(part[:, :-1], states[number])
                loss = cross_entropy(scores.flatten(0, 1), part[:, 1:].flatten())
                (loss / MICRO_BATCHES).backward()
            states[number] = (state[0].detach(), state[1].detach())
            total += loss.item() / MICRO_BATCHES
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(total)
    return losses


def main(how: str) -> None:
    """Profile the model, or train it by a plan or by DDP."""
    torch.manual_seed(0)
    model = LanguageModel()
    if how == "profile":
        with comm_plan.profile(model, "profile.json"):
            train(model, 20)
        return
    dist.init_process_group("gloo")
    if how == "ddp":
        wrapped = DistributedDataParallel(model)
        losses = train(wrapped, 100, wrapped.no_sync)
    else:
        engine = comm_plan.parallelize(model, how)
        losses = train(model, 100, engine.no_sync)
    if dist.get_rank() == 0:
        print(f"loss {losses[0]:.3f}, after {len(losses)} steps {losses[-1]:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
