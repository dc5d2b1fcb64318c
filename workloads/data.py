"""Batches for the ranks: shards of a data set, or random where there is no data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from comm_plan.errors import WorkloadError
from comm_plan.workloads.base import Batches, Evaluate, no_evaluation
from comm_plan.workloads.modes import evaluating

RANDOM_BATCHES = 50
"""Batches in an epoch of random data."""


@dataclass(frozen=True)
class Source:
    """Where a workload's samples come from: what it takes by these names."""

    batches: Batches
    evaluate: Evaluate = no_evaluation


def random_stream(seed: int, index: int) -> torch.Generator:
    """Return a generator of its own for each ``index`` (an epoch, a rank)."""
    return torch.Generator().manual_seed(seed * 1_000_003 + index)


def shard_indices(
    samples: int, batch_size: int, rank: int, world_size: int, epoch: int, seed: int
) -> Iterator[list[int]]:
    """Yield the sample indices of each batch of one rank.

    All ranks draw the same permutation from ``(seed, epoch)`` and cut it into global
    batches of ``world_size * batch_size``; a rank takes its slice of each. So step s of
    P ranks sees the same samples as step s of one rank with a batch P times as large.
    What does not fill a global batch is left out in this epoch.

    Raises:
        WorkloadError: the samples do not fill one global batch.
    """
    step_samples = world_size * batch_size
    if samples < step_samples:
        raise WorkloadError(
            f"{samples} samples do not give a batch of {batch_size} to each of "
            f"{world_size} ranks: lower the batch size or the number of ranks"
        )
    generator = random_stream(seed, epoch)
    order = torch.randperm(samples, generator=generator)
    for start in range(0, samples - step_samples + 1, step_samples):
        first = start + rank * batch_size
        yield order[first : first + batch_size].tolist()


def shards(*tensors: torch.Tensor, batch_size: int) -> Batches:
    """Return the ``batches`` of a data set that lies in memory.

    Args:
        tensors: each [samples, ...]; a batch is the tuple of their rows.
        batch_size: samples in a batch of one rank.
    """

    def batches(rank: int, world_size: int, epoch: int, seed: int) -> Iterator[Any]:
        samples = len(tensors[0])
        for rows in shard_indices(samples, batch_size, rank, world_size, epoch, seed):
            yield tuple(tensor[rows] for tensor in tensors)

    return batches


def random_images(
    batch_size: int, size: int, classes: int, channels: int = 3
) -> Batches:
    """Return ``batches`` of one random batch, repeated: images and their labels.

    Repeating it keeps the making of random numbers out of the iteration time.

    Args:
        batch_size: samples in a batch.
        size: an image is [channels, size, size].
        classes: labels are below this number.
        channels: colours.
    """

    def batches(rank: int, world_size: int, epoch: int, seed: int) -> Iterator[Any]:
        generator = random_stream(seed, rank)
        shape = (batch_size, channels, size, size)
        images = torch.randn(shape, generator=generator)
        labels = torch.randint(classes, (batch_size,), generator=generator)
        for _ in range(RANDOM_BATCHES):
            yield images, labels

    return batches


def device_of(model: nn.Module) -> torch.device:
    """Return where the model's parameters are."""
    return next(model.parameters()).device


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the mean cross-entropy of logits [..., classes] against labels [...]."""
    inputs, labels = (part.to(device_of(model)) for part in batch)
    logits = model(inputs)
    return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def mean_loss(model: nn.Module, windows: torch.Tensor, batch_size: int) -> float:
    """Return the mean cross-entropy, in nats, of each token behind those before it.

    Args:
        model: a language model, which is left in the mode it is in.
        windows: tokens [windows, T + 1].
        batch_size: how many of them to judge at once.
    """
    total = 0.0
    with evaluating(model), torch.no_grad():
        for rows in windows.split(batch_size):
            loss = cross_entropy(model, (rows[:, :-1], rows[:, 1:]))
            total += loss.item() * len(rows)
    return total / len(windows)
