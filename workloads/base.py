"""What a workload is: a model, its optimizer, its data and its loss, ready to run.

The profiler and the trainer take the same value. Nothing in it knows of plans or of
communication: a rank asks for its own shard of the data, and that is all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from comm_plan.errors import WorkloadError

if TYPE_CHECKING:
    import torch
    from torch import nn

Batch = Any
"""Whatever ``batches`` yields and ``loss`` takes; the built-in ones use pairs."""

MakeOptimizer = Callable[[Iterable["nn.Parameter"]], "torch.optim.Optimizer"]
Batches = Callable[[int, int, int, int], Iterator[Batch]]
Loss = Callable[["nn.Module", Batch], "torch.Tensor"]
Evaluate = Callable[["nn.Module"], "tuple[str, float] | None"]


LONGEST_EPOCH = 10**6
"""Batches after which whoever counts those of an epoch takes it to have no end."""


def one_epoch(
    batches: Batches, rank: int, world_size: int, epoch: int, seed: int
) -> Iterator[Batch]:
    """Yield a rank's batches of one epoch.

    Raises:
        WorkloadError: there are none, so that to train for a number of steps, or to
            measure, would never end.
    """
    empty = True
    for batch in batches(rank, world_size, epoch, seed):
        empty = False
        yield batch
    if empty:
        raise WorkloadError(
            f"epoch {epoch} has no batch for rank {rank} of {world_size}: the data "
            "must begin anew in each epoch, and give every rank a batch"
        )


def endless(
    batches: Batches, rank: int, world_size: int, seed: int = 0
) -> Iterator[Batch]:
    """Return a rank's batches of one epoch after the other, without end.

    Raises:
        WorkloadError: when an epoch is reached that has none.
    """
    return itertools.chain.from_iterable(
        one_epoch(batches, rank, world_size, epoch, seed) for epoch in itertools.count()
    )


def no_evaluation(model: nn.Module) -> None:
    """Evaluate nothing: the workload has no held-out data."""


@dataclass(frozen=True)
class Workload:
    """A model with all that is needed to train it.

    Attributes:
        name: what profiles and run records call it.
        model: on the CPU, with the same initial parameters on every rank.
        optimizer: makes the optimizer from ``model.parameters()``.
        batch_size: samples in a batch of one rank.
        batches: ``batches(rank, world_size, epoch, seed)`` yields the rank's batches
            of one epoch, on the CPU. The shards of the ranks are disjoint, all have
            the same number of batches, and equal arguments give equal batches.
        loss: ``loss(model, batch)`` runs the forward pass and returns the mean loss as
            a scalar; it moves the batch to the model's device itself.
        evaluate: ``evaluate(model)`` returns a metric's name and its value on held-out
            data, such as ``("accuracy", 0.98)``, or None where there are none.
        epochs: how many to train unless told otherwise.
        epoch_steps: ``epoch_steps(world_size)`` returns how many batches a rank gets in
            an epoch; None: whoever must know it counts them.
    """

    name: str
    model: nn.Module
    optimizer: MakeOptimizer
    batch_size: int
    batches: Batches
    loss: Loss
    evaluate: Evaluate = no_evaluation
    epochs: int = 1
    epoch_steps: Callable[[int], int] | None = None

    def __post_init__(self) -> None:
        """Check what a caller can get wrong.

        Raises:
            WorkloadError: ``batch_size`` or ``epochs`` is below 1.
        """
        for field in ("batch_size", "epochs"):
            if getattr(self, field) < 1:
                raise WorkloadError(
                    f"workload {self.name} has {field} {getattr(self, field)}: "
                    "give 1 or more"
                )

    def steps_of_epoch(self, world_size: int) -> int:
        """Return how many batches a rank gets in an epoch; count them if need be.

        Raises:
            WorkloadError: there are none, or more than :data:`LONGEST_EPOCH`.
        """
        if self.epoch_steps is not None:
            steps = self.epoch_steps(world_size)
            if steps < 1:
                raise WorkloadError(
                    f"workload {self.name}: its data gives {world_size} ranks no batch "
                    "each: use fewer ranks, or a smaller batch size"
                )
            return steps
        batches = one_epoch(self.batches, 0, world_size, 0, 0)
        steps = sum(1 for _ in itertools.islice(batches, LONGEST_EPOCH + 1))
        if steps > LONGEST_EPOCH:
            raise WorkloadError(
                f"workload {self.name}: its epoch does not end within {LONGEST_EPOCH} "
                "batches: let its data end, or give a Workload's epoch_steps"
            )
        return steps
