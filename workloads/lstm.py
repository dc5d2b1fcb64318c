"""The 2-layer LSTM language model for Penn Treebank: 66 million parameters.

Zaremba, Sutskever, Vinyals, "Recurrent Neural Network Regularization", 2014, the large
model: 1500 units, 35 unrolled steps, 65 % dropout; the gTop-k and LAGS papers train it.
The tokens are random.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from comm_plan.workloads.base import Batches, Workload
from comm_plan.workloads.data import (
    RANDOM_BATCHES,
    cross_entropy,
    random_stream,
)

VOCABULARY = 10_000
STEPS = 35


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


def lstm_ptb(*, batch_size: int = 20) -> Workload:
    """Return the LSTM on random tokens: batch size of LAGS, learning rate of gTop-k."""
    return Workload(
        name="lstm-ptb",
        model=LstmLanguageModel(),
        optimizer=partial(torch.optim.SGD, lr=1.0),
        batch_size=batch_size,
        batches=random_tokens(batch_size),
        loss=cross_entropy,
    )
