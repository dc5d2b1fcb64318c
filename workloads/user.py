"""What the function of a user's own workload may return.

Either a :class:`~comm_plan.workloads.base.Workload`, or, for the usual case, a
tuple of the parts that every training script has anyway::

    def make():
        return model, data                      # the model computes its loss
        return model, data, loss                # SGD with lr 0.01, momentum 0.9
        return model, data, loss, optimizer     # loss None: the model computes it

``model``
    An ``nn.Module`` on the CPU. comm-plan sets the seeds of Python, NumPy and PyTorch
    before it calls the function, so that every rank makes the same parameters and
    splits its data alike.
``data``
    A ``DataLoader`` (its data set, batch size and ``collate_fn`` are taken, the shards
    and the order are comm-plan's, so it can have no other sampler), a list of batches
    (dealt out to the ranks in turn), or a function ``data(rank, world_size, epoch,
    seed)`` that yields the rank's batches of this epoch, and ends. A batch is a pair
    ``(inputs, targets)``, or a dictionary, which the model takes as keywords. Inputs
    that are a tuple are several arguments, and those that are a dictionary keywords.
``loss``
    ``loss(outputs, targets)`` such as ``nn.CrossEntropyLoss()``; it is called with what
    the model returns, and with the whole batch where that is a dictionary, and must
    return a scalar mean over the batch. A module, such as one with class weights, is
    used on the model's device. None: the model takes the whole batch, and returns its
    loss, or something with a ``loss`` as Hugging Face's models do, or a tuple that
    begins with it.
``optimizer``
    An optimizer over the model's parameters, or a function that makes one from
    ``model.parameters()``, of which the trained model may be a copy: it uses those that
    it is handed. Of an optimizer its class and its groups' settings are taken: every
    training begins with a new one.

Anything else, and evaluation, needs a :class:`comm_plan.workloads.Workload`. If
``--batch-size``, ``--data`` or ``--augment`` shall work, the function takes
``batch_size``, ``data`` (a path) or ``augment`` (true or false).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from comm_plan.errors import WorkloadError
from comm_plan.nested import map_tensors, samples_in
from comm_plan.workloads.base import Batches, Loss, MakeOptimizer, Workload
from comm_plan.workloads.checks import first_batch, kind
from comm_plan.workloads.data import device_of, shard_indices


def from_parts(name: str, parts: Any) -> Workload:
    """Return the workload that a user's function meant with ``parts``.

    Raises:
        WorkloadError: it is none of what this module's docstring lists.
    """
    if not isinstance(parts, tuple) or len(parts) not in (2, 3, 4):
        raise WorkloadError(
            f"workload {name} returned {kind(parts)}: return a "
            "comm_plan.workloads.Workload or a tuple (model, data), (model, data, "
            "loss) or (model, data, loss, optimizer)"
        )
    model, data, loss, *optimizer = (*parts, None) if len(parts) == 2 else parts
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f"workload {name} returned {kind(model)} as its model: it must be an "
            "nn.Module"
        )
    if loss is not None and not callable(loss):
        raise WorkloadError(
            f"workload {name} returned {kind(loss)} as its loss: it must be a "
            "function of outputs and targets"
        )
    batches, batch_size = _batches(name, data)
    return Workload(
        name=name,
        model=model,
        optimizer=_optimizer(name, model, *optimizer),
        batch_size=batch_size,
        batches=batches,
        loss=_own_loss(name) if loss is None else _loss(name, loss),
        epoch_steps=_epoch_steps(data, batch_size),
    )


def _batches(name: str, data: Any) -> tuple[Batches, int]:
    if isinstance(data, DataLoader):
        return _resharded(name, data)
    if isinstance(data, Sequence) and data:
        return _dealt(data), samples_in(data[0]) or 1
    if callable(data):
        return data, samples_in(first_batch(name, data)) or 1
    if isinstance(data, Sequence):
        raise WorkloadError(f"workload {name} returned no batches: its data is empty")
    raise WorkloadError(
        f"workload {name} returned {kind(data)} as its data: it must be a DataLoader, "
        "a list of batches, or a function of rank, world_size, epoch and seed"
    )


def _only_orders(sampler: Any, samples: int) -> bool:
    """Return whether ``sampler`` takes each of so many once: that is replaced."""
    if isinstance(sampler, RandomSampler):
        return not sampler.replacement and len(sampler) == samples
    return isinstance(sampler, SequentialSampler | DistributedSampler)


def _resharded(name: str, loader: DataLoader[Any]) -> tuple[Batches, int]:
    dataset, batch_size = loader.dataset, loader.batch_size
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise WorkloadError(
            f"workload {name}: the data set of its DataLoader, {kind(dataset)}, cannot "
            "be divided among ranks: return a data function, or a data set with a "
            "length and an index"
        )
    if batch_size is None:
        raise WorkloadError(
            f"workload {name}: its DataLoader cannot be divided among ranks: give it a "
            "batch_size and no batch_sampler, or return a data function"
        )
    if not _only_orders(loader.sampler, len(dataset)):
        raise WorkloadError(
            f"workload {name}: its DataLoader has a "
            f"{type(loader.sampler).__name__} that chooses samples, but it is "
            "comm-plan that deals them out: use torch.utils.data.Subset, or a data "
            "function"
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


def _epoch_steps(data: Any, batch_size: int) -> Callable[[int], int] | None:
    """Return the steps of an epoch where to count them is to load every sample."""
    if not isinstance(data, DataLoader):
        return None
    samples = len(data.dataset)  # type: ignore[arg-type]
    return lambda world_size: samples // (world_size * batch_size)


def _dealt(data: Sequence[Any]) -> Batches:
    def batches(rank: int, world_size: int, epoch: int, seed: int) -> Iterator[Any]:
        if len(data) < world_size:
            raise WorkloadError(
                f"{len(data)} batches for {world_size} ranks: give more batches"
            )
        for index in range(rank, len(data) // world_size * world_size, world_size):
            yield data[index]

    return batches


def _loss(name: str, given: Any) -> Loss:
    by_device: dict[torch.device, Any] = {}

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        device = device_of(model)
        if device not in by_device:
            by_device[device] = _criterion_on(device, given)
        criterion, batch = by_device[device], _moved(batch, device)
        if isinstance(batch, dict):
            return criterion(_outputs(model, batch), batch)  # type: ignore[no-any-return]
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise WorkloadError(
                f"workload {name}: a batch is {kind(batch)}, neither a pair of inputs "
                "and targets nor a dictionary: return a comm_plan.workloads.Workload "
                "with its own loss"
            )
        inputs, targets = batch
        return criterion(_outputs(model, inputs), targets)  # type: ignore[no-any-return]

    return loss


def _criterion_on(device: torch.device, given: Any) -> Any:
    """Return ``given``, or, where it is a module with tensors elsewhere, a copy."""
    if not isinstance(given, nn.Module):
        return given
    tensors = (*given.parameters(), *given.buffers())
    if all(tensor.device == device for tensor in tensors):
        return given
    return copy.deepcopy(given).to(device)


def _own_loss(name: str) -> Loss:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        inputs = _moved(batch, device_of(model))
        if isinstance(inputs, (tuple, list)):
            _check_arguments(name, model, inputs)
        returned = _outputs(model, inputs)
        value = _loss_in(returned)
        if not isinstance(value, torch.Tensor) or value.ndim:
            raise WorkloadError(
                f"workload {name} returned no loss, and its model returns "
                f"{kind(returned)}, in which there is none: return (model, data, loss)"
            )
        return value

    return loss


def _check_arguments(name: str, model: nn.Module, inputs: Sequence[Any]) -> None:
    try:
        inspect.signature(model.forward).bind(*inputs)
    except TypeError as error:
        raise WorkloadError(
            f"workload {name} returned no loss, and its model does not take a batch of "
            f"{len(inputs)} ({error}): return (model, data, loss)"
        ) from None


def _loss_in(returned: Any) -> Any:
    """Return what a model that computes its loss means by it."""
    if isinstance(returned, Mapping):
        return returned.get("loss")
    if isinstance(returned, (tuple, list)) and not hasattr(returned, "loss"):
        return returned[0] if returned else None
    return getattr(returned, "loss", returned)


def _outputs(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)


def _moved(batch: Any, device: torch.device) -> Any:
    """Return ``batch`` with its tensors on ``device``; mappings become dicts."""
    return map_tensors(lambda tensor: tensor.to(device), batch)


def _optimizer(name: str, model: nn.Module, given: Any = None) -> MakeOptimizer:
    if given is None:
        return lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
    if isinstance(given, torch.optim.Optimizer):
        return _like(name, model, given)
    if callable(given):
        return given  # type: ignore[no-any-return]
    raise WorkloadError(
        f"workload {name} returned {kind(given)} as its optimizer: it must be an "
        "optimizer or a function of the parameters"
    )


def _like(name: str, model: nn.Module, given: torch.optim.Optimizer) -> MakeOptimizer:
    """Return what makes new optimizers of ``given``'s class, groups and settings."""
    position = {p: index for index, p in enumerate(model.parameters())}
    if any(p not in position for group in given.param_groups for p in group["params"]):
        raise WorkloadError(
            f"workload {name}: its optimizer holds a parameter that is not its model's"
        )
    settings = [dict(group) for group in given.param_groups]
    held = [[position[p] for p in group.pop("params")] for group in settings]
    known = inspect.signature(type(given)).parameters
    defaults = {key: value for key, value in given.defaults.items() if key in known}

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        own = list(parameters)
        groups = [
            {**group, "params": [own[index] for index in indices]}
            for group, indices in zip(settings, held, strict=True)
        ]
        try:
            return type(given)(groups, **defaults)
        except TypeError as error:
            raise WorkloadError(
                f"workload {name}: another {type(given).__name__} cannot be made "
                f"({error}): return a function of the parameters that makes it"
            ) from error

    return make
