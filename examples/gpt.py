"""A small GPT that learns the characters of this file, with an accumulated gradient.

::

    OMP_NUM_THREADS=1 python examples/gpt.py profile  # writes profile.json
    comm-plan benchmark-network --local-ranks 2 -o network.json
    comm-plan solve profile.json network.json -o plan.json
    torchrun --nproc-per-node 2 examples/gpt.py plan.json  # writes run-plan.json
    torchrun --nproc-per-node 2 examples/gpt.py ddp  # writes run-ddp.json
    comm-plan show run-ddp.json run-plan.json  # was it worth it?
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import comm_plan

CONTEXT, WIDTH, HEADS, LAYERS = 32, 64, 4, 2
BATCH, MICRO_BATCHES = 16, 2
TEXT = Path(__file__).read_text(encoding="utf-8")
LETTERS = sorted(set(TEXT))


class Block(nn.Module):
    """Attention and a perceptron, each after a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what follows ``x`` [N, T, WIDTH], of the same shape."""
        parts = self.query_key_value(self.before_attention(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        result: torch.Tensor = x + self.perceptron(x)
        return result


class Gpt(nn.Module):
    """Computes its loss; the embedding of letters is also the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, len(LETTERS), bias=False)
        self.scores.weight = self.letters.weight
        nn.init.normal_(self.letters.weight, std=0.02)

    def forward(self, letters: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of predicting ``following`` [N, T]."""
        x = self.letters(letters) + self.places.weight[: letters.shape[1]]
        scores = self.scores(self.norm(self.blocks(x)))
        return cross_entropy(scores.flatten(0, 1), following.flatten())


def train(
    model: nn.Module,
    steps: int,
    no_sync: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[float]:
    """Train and return the loss of each step."""
    text = torch.tensor([LETTERS.index(letter) for letter in TEXT])
    rank = dist.get_rank() if dist.is_initialized() else 0
    order = torch.Generator().manual_seed(rank)  # each rank its own samples
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        begins = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=order)
        batch = text[begins + torch.arange(CONTEXT + 1)]
        optimizer.zero_grad()
        total = 0.0
        for number, part in enumerate(batch.chunk(MICRO_BATCHES), start=1):
            with nullcontext() if number == MICRO_BATCHES else no_sync():
                loss = model(part[:, :-1], part[:, 1:]) / MICRO_BATCHES
                loss.backward()
                total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


def main(how: str) -> None:
    """Profile the model, or train it by a plan or by DDP."""
    torch.manual_seed(0)
    model = Gpt()
    if how == "profile":
        with comm_plan.profile(model, "profile.json"):
            train(model, 20)
        return
    dist.init_process_group("gloo")
    if how == "ddp":
        wrapped = DistributedDataParallel(model)
        with comm_plan.record(wrapped, "run-ddp.json"):
            losses = train(wrapped, 100, wrapped.no_sync)
    else:
        engine = comm_plan.parallelize(model, how)
        with comm_plan.record(engine, "run-plan.json"):
            losses = train(model, 100, engine.no_sync)
    if dist.get_rank() == 0:
        print(f"loss {losses[0]:.3f}, after {len(losses)} steps {losses[-1]:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
