"""The 2-layer LSTM language model for Penn Treebank: 66 million parameters.

Zaremba, Sutskever, Vinyals, "Recurrent Neural Network Regularization", 2014, the large
model: 1500 units, 35 unrolled steps, 65 % dropout; the gTop-k and LAGS papers train it.
PTB is read where it is given; else the tokens are random.

Differences from the model's paper: windows of 35 words come in random order, as in
other data sets here, and each starts from a state of zeros, where the paper goes on
from the window before. So perplexities end higher than published.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from comm_plan.errors import WorkloadError
from comm_plan.workloads.base import Batches, Workload
from comm_plan.workloads.data import (
    RANDOM_BATCHES,
    Source,
    cross_entropy,
    mean_loss,
    random_stream,
    shards,
)
from comm_plan.workloads.files import ptb

VOCABULARY = 10_000
STEPS = 35
EVALUATION_BATCH = 20


class LstmLanguageModel(nn.Module):
    """Embedding, two LSTM layers and a projection to the vocabulary, not tied."""

    def __init__(self, vocabulary: int = VOCABULARY, hidden: int = 1500) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, 2, dropout=0.65, batch_first=True)
        self.dropout = nn.Dropout(0.65)
        self.decoder = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens [N, T] to logits [N, T, vocabulary]."""
        out, _ = self.lstm(self.dropout(self.embedding(tokens)))
        logits: torch.Tensor = self.decoder(self.dropout(out))
        return logits


def random_tokens(batch_size: int) -> Batches:
    """Return ``batches`` of one random batch, repeated: tokens and their successors."""

    def batches(rank: int, world_size: int, epoch: int, seed: int) -> Iterator[Any]:
        generator = random_stream(seed, rank)
        shape = (batch_size, STEPS + 1)
        tokens = torch.randint(VOCABULARY, shape, generator=generator)
        for _ in range(RANDOM_BATCHES):
            yield tokens[:, :-1], tokens[:, 1:]

    return batches


def text(training: torch.Tensor, held_out: torch.Tensor, batch_size: int) -> Source:
    """Return batches of words and their successors, and held-out perplexity.

    Args:
        training: words as numbers, [N].
        held_out: likewise.
        batch_size: windows in a batch of one rank.
    """
    windows, judged = (
        words.unfold(0, STEPS + 1, STEPS) for words in (training, held_out)
    )  # [windows, STEPS + 1]; neighbours share a word

    def evaluate(model: nn.Module) -> tuple[str, float]:
        loss = mean_loss(model, judged, EVALUATION_BATCH)
        # Of a model that diverges it is inf, where math.exp raises an error.
        return "perplexity", torch.tensor(loss, dtype=torch.float64).exp().item()

    batches = shards(windows[:, :-1], windows[:, 1:], batch_size=batch_size)
    return Source(batches, evaluate)


def lstm_ptb(*, batch_size: int = 20, data: Path | None = None) -> Workload:
    """Return the LSTM on PTB: batch size of LAGS, learning rate of gTop-k.

    Raises:
        WorkloadError: ``data`` does not hold PTB, or not enough of it.
    """
    source, vocabulary = Source(random_tokens(batch_size)), VOCABULARY
    if data is not None:
        training, held_out, vocabulary = ptb(data)
        if (words := min(len(training), len(held_out))) <= STEPS:
            raise WorkloadError(
                f"--data {data}: one of PTB's texts has {words} words, fewer than the "
                f"{STEPS + 1} of a window: take ptb.train.txt and ptb.valid.txt whole"
            )
        source = text(training, held_out, batch_size)
    return Workload(
        name="lstm-ptb",
        model=LstmLanguageModel(vocabulary),
        optimizer=partial(torch.optim.SGD, lr=1.0),
        batch_size=batch_size,
        batches=source.batches,
        evaluate=source.evaluate,
        loss=cross_entropy,
        epochs=40 if data else 1,
    )
