"""What the function of a user's own workload may return.

Either a :class:`~comm_plan.workloads.base.Workload`, or, for the usual case, a
tuple of the parts that every training script has anyway::

    def make():
        return model, data, loss                # SGD with lr 0.01, momentum 0.9
        return model, data, loss, optimizer

``model``
    An ``nn.Module`` on the CPU. comm-plan sets the seed before it calls the function,
    so that every rank makes the same parameters.
``data``
    A ``DataLoader`` (its data set, batch size and ``collate_fn`` are taken, the shards
    and the order are comm-plan's), a list of batches (dealt out to the ranks in turn),
    or a function ``data(rank, world_size, epoch, seed)`` that yields the rank's
    batches. A batch is a pair ``(inputs, targets)``.
``loss``
    ``loss(outputs, targets)`` such as ``nn.CrossEntropyLoss()``; it is called with
    ``model(inputs)`` and must return a scalar mean over the batch.
``optimizer``
    An optimizer over the model's parameters, or a function that makes one from
    ``model.parameters()``.

Batches that are no pairs, or a loss of another form, need a ``Workload``. So does
evaluation. If ``--batch-size`` shall work, the function takes ``batch_size``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from comm_plan.errors import WorkloadError
from comm_plan.workloads.base import Batches, Loss, MakeOptimizer, Workload
from comm_plan.workloads.data import device_of, shard_indices


def from_parts(name: str, parts: Any) -> Workload:
    """Return the workload that a user's function meant with ``parts``.

    Raises:
        WorkloadError: it is none of what this module's docstring lists.
    """
    if not isinstance(parts, tuple) or len(parts) not in (3, 4):
        raise WorkloadError(
            f"workload {name} returned {_kind(parts)}: return a Workload or a tuple "
            "(model, data, loss) or (model, data, loss, optimizer)"
        )
    model, data, loss, *optimizer = parts
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f"workload {name} returned {_kind(model)} as its model: it must be an "
            "nn.Module"
        )
    if not callable(loss):
        raise WorkloadError(
            f"workload {name} returned {_kind(loss)} as its loss: it must be a "
            "function of outputs and targets"
        )
    batches, batch_size = _batches(name, data)
    return Workload(
        name=name,
        model=model,
        optimizer=_optimizer(name, *optimizer),
        batch_size=batch_size,
        batches=batches,
        loss=_loss(name, loss),
    )


def _batches(name: str, data: Any) -> tuple[Batches, int]:
    if isinstance(data, DataLoader):
        return _resharded(name, data)
    if isinstance(data, Sequence) and data:
        return _dealt(data), _samples(data[0])
    if callable(data):
        return data, _samples(next(iter(data(0, 1, 0, 0))))
    raise WorkloadError(
        f"workload {name} returned {_kind(data)} as its data: it must be a DataLoader, "
        "a list of batches, or a function of rank, world_size, epoch and seed"
    )


def _resharded(name: str, loader: DataLoader[Any]) -> tuple[Batches, int]:
    dataset, batch_size = loader.dataset, loader.batch_size
    if batch_size is None or not hasattr(dataset, "__len__"):
        raise WorkloadError(
            f"workload {name}: its DataLoader cannot be divided among ranks: it needs "
            "a batch_size and a data set with a length"
        )

    def batches(rank: int, world_size: int, epoch: int, seed: int) -> Iterator[Any]:
        rows = shard_indices(len(dataset), batch_size, rank, world_size, epoch, seed)
        yield from DataLoader(
            dataset,
            batch_sampler=list(rows),
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
            worker_init_fn=loader.worker_init_fn,
        )

    return batches, batch_size


def _dealt(data: Sequence[Any]) -> Batches:
    def batches(rank: int, world_size: int, epoch: int, seed: int) -> Iterator[Any]:
        if len(data) < world_size:
            raise WorkloadError(
                f"{len(data)} batches for {world_size} ranks: give more batches"
            )
        for index in range(rank, len(data) // world_size * world_size, world_size):
            yield data[index]

    return batches


def _samples(batch: Any) -> int:
    """Return the batch size as the first tensor of a batch shows it."""
    first = batch
    while isinstance(first, (tuple, list)) and first:
        first = first[0]
    return len(first) if isinstance(first, torch.Tensor) and first.ndim else 1


def _loss(name: str, criterion: Any) -> Loss:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise WorkloadError(
                f"workload {name}: a batch is {_kind(batch)}, not a pair of inputs and "
                "targets: return a Workload with its own loss"
            )
        inputs, targets = (part.to(device_of(model)) for part in batch)
        return criterion(model(inputs), targets)  # type: ignore[no-any-return]

    return loss


def _optimizer(name: str, given: Any = None) -> MakeOptimizer:
    if given is None:
        return lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
    if isinstance(given, torch.optim.Optimizer):
        return lambda parameters: given
    if callable(given):
        return given  # type: ignore[no-any-return]
    raise WorkloadError(
        f"workload {name} returned {_kind(given)} as its optimizer: it must be an "
        "optimizer or a function of the parameters"
    )


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"{type(value).__name__} {str(value)[:40]!r}".split("\n", 1)[0]
