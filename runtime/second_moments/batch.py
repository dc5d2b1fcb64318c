"""How many samples a batch has, and the micro-batches that it is cut into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from comm_plan.errors import MismatchError
from comm_plan.runtime.flat import tensors_in


def batch_size(arguments: object) -> int:
    """Return the length of the first tensor among the (nested) ``arguments``.

    Raises:
        MismatchError: there is no tensor with a first dimension.
    """
    for tensor in tensors_in(arguments):
        if tensor.ndim:
            return len(tensor)
    raise MismatchError(
        "the model was called without a tensor, so its batch size is unknown: pass "
        "the batch as a tensor, or inside tuples, lists or dictionaries"
    )


def cut(batch: Any, parts: int) -> list[Any]:
    """Return ``batch`` in ``parts`` micro-batches of equally many samples.

    Args:
        batch: a tensor, or nested tuples, lists, dictionaries and dataclasses; what is
            no tensor, or has no dimension, goes to every part.
        parts: how many.

    Raises:
        MismatchError: the samples cannot be told apart, or not be shared out equally.
    """
    if parts == 1:
        return [batch]
    samples = batch_size(batch)
    if samples % parts:
        raise MismatchError(
            f"a batch of {samples} samples cannot be cut into {parts} micro-batches: "
            "give a number that divides it"
        )
    return [_part(batch, samples, i, samples // parts) for i in range(parts)]


def _part(batch: Any, samples: int, number: int, size: int) -> Any:
    """Return micro-batch ``number``, of ``size`` samples."""
    if isinstance(batch, torch.Tensor):
        if batch.ndim and len(batch) != samples:
            raise MismatchError(
                f"a batch of {samples} samples holds a tensor of shape "
                f"{list(batch.shape)}, so it cannot be cut into micro-batches: give "
                "tensors whose first dimension is the sample"
            )
        return batch[number * size : (number + 1) * size] if batch.ndim else batch
    if isinstance(batch, Mapping):
        return {k: _part(v, samples, number, size) for k, v in batch.items()}
    if isinstance(batch, (tuple, list)):
        items = [_part(item, samples, number, size) for item in batch]
        if hasattr(batch, "_fields"):  # a named tuple
            return type(batch)(*items)
        return items if isinstance(batch, list) else tuple(items)
    if is_dataclass(batch) and not isinstance(batch, type):
        given = {f.name: getattr(batch, f.name) for f in fields(batch) if f.init}
        return replace(batch, **_part(given, samples, number, size))
    return batch
