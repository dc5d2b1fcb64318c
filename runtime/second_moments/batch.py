"""How many samples a model is called with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from comm_plan.errors import MismatchError


def batch_size(arguments: Any) -> int:
    """Return the length of the first tensor among the (nested) ``arguments``.

    Raises:
        MismatchError: there is no tensor with a first dimension.
    """
    for tensor in _tensors(arguments):
        if tensor.ndim:
            return len(tensor)
    raise MismatchError(
        "the model was called without a tensor, so its batch size is unknown: pass "
        "the batch as a tensor, or inside tuples, lists or dictionaries"
    )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
