"""How many samples a batch has, and the micro-batches that it is cut into."""

from __future__ import annotations

from typing import Any

import torch

from comm_plan import units
from comm_plan.errors import MismatchError
from comm_plan.nested import map_tensors, samples_in


def batch_size(arguments: object) -> int:
    """Return the length of the first tensor among the (nested) ``arguments``.

    Raises:
        MismatchError: there is no tensor with a first dimension.
    """
    samples = samples_in(arguments)
    if samples is None:
        raise MismatchError(
            "the model was called without a tensor, so its batch size is unknown: pass "
            "the batch as a tensor, or inside tuples, lists, dictionaries or "
            "dataclasses"
        )
    return samples


def cut(batch: Any, parts: int) -> list[Any]:
    """Return ``batch`` in ``parts`` micro-batches of equally many samples.

    Args:
        batch: a tensor, or nested containers of tensors; what is no tensor, or has no
            dimension, goes to every part.
        parts: how many.

    Raises:
        MismatchError: the samples cannot be told apart, or not be shared out equally.
    """
    if parts == 1:
        return [batch]
    samples = batch_size(batch)
    if samples % parts:
        raise MismatchError(
            f"a batch of {units.counted(samples, 'sample')} cannot be cut into {parts} "
            "micro-batches: leave out a last batch that is shorter than the others, or "
            "give a number that divides all of them (--second-moments)"
        )
    return [_part(batch, samples, i, samples // parts) for i in range(parts)]


def _part(batch: Any, samples: int, number: int, size: int) -> Any:
    """Return micro-batch ``number``, of ``size`` samples."""

    def part(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.ndim:
            return tensor
        if len(tensor) != samples:
            raise MismatchError(
                f"a batch of {samples} samples holds a tensor of shape "
                f"{list(tensor.shape)}, so it cannot be cut into micro-batches: give "
                "tensors whose first dimension is the sample"
            )
        return tensor[number * size : (number + 1) * size]

    return map_tensors(part, batch)
