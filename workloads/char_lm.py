"""A small GPT that learns to write Python, from the standard library's own source.

The text is the first ``TEXT_NBYTES`` bytes of the library's top-level modules by name,
so it is the same on all hosts that run the same Python. The last tenth is held out.
Nothing is downloaded.
"""

from __future__ import annotations

import sysconfig
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from comm_plan.errors import WorkloadError
from comm_plan.workloads.base import Workload
from comm_plan.workloads.data import cross_entropy, mean_loss, shards

TEXT_NBYTES = 256 * 1024
VOCABULARY = 128  # ASCII; whatever is not becomes a question mark
CONTEXT = 64
EVALUATION_BATCH = 64


class Block(nn.Module):
    """Causal self-attention and a perceptron, each after a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [N, T, width] to the same shape."""
        x = x + self.projection(self._attend(self.norm1(x)))
        mixed: torch.Tensor = self.contract(F.gelu(self.expand(self.norm2(x))))
        return x + mixed

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.attention(x).chunk(3, -1)
        )  # each [N, heads, T, width / heads]
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return out.transpose(1, 2).flatten(2)


class CharGpt(nn.Module):
    """Embeddings, a few blocks and a projection to the vocabulary."""

    def __init__(self, width: int = 96, heads: int = 4, blocks: int = 3) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.decoder = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens [N, T] to logits [N, T, VOCABULARY]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        # One row a sample, so that per-sample second moments are defined.
        x = self.tokens(tokens) + self.positions(places.expand_as(tokens))
        logits: torch.Tensor = self.decoder(self.norm(self.blocks(x)))
        return logits


def source_text(folder: Path, nbytes: int = TEXT_NBYTES) -> bytes:
    """Return ``nbytes`` bytes of the modules in ``folder``, in the order of names.

    Raises:
        WorkloadError: ``folder`` does not hold so much source.
    """
    text = b""
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= nbytes:
            return text[:nbytes]
    raise WorkloadError(
        f"workload char-lm: {folder} holds {len(text)} bytes of Python source, "
        f"{nbytes} are needed: use a Python whose standard library is not zipped"
    )


def _windows() -> torch.Tensor:
    """Return the text as tokens [windows, CONTEXT + 1]; neighbours share one token."""
    text = source_text(Path(sysconfig.get_path("stdlib")))
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    tokens[tokens >= VOCABULARY] = ord("?")
    return tokens.unfold(0, CONTEXT + 1, CONTEXT)


def char_lm(*, batch_size: int = 16) -> Workload:
    """Return the language model; its metric is held-out loss in nats a character."""
    windows = _windows()
    training, held_out = windows.split(
        [len(windows) - len(windows) // 10, len(windows) // 10]
    )

    def evaluate(model: nn.Module) -> tuple[str, float]:
        return "loss", mean_loss(model, held_out, EVALUATION_BATCH)

    return Workload(
        name="char-lm",
        model=CharGpt(),
        optimizer=partial(torch.optim.AdamW, lr=3e-3),
        batch_size=batch_size,
        batches=shards(training[:, :-1], training[:, 1:], batch_size=batch_size),
        loss=cross_entropy,
        evaluate=evaluate,
        epochs=2,
    )
