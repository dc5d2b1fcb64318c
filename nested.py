"""Tensors inside nested values: what models take and return, and batches."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in ``value``: a tensor, or nested containers of tensors.

    Containers are tuples, lists, dictionaries and dataclasses; each is looked through
    once, as one may hold itself.
    """
    seen = set()
    found = [value]
    while found:
        value = found.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            found.extend(reversed(_items(value)))


def samples_in(value: object) -> int | None:
    """Return the length of the first tensor in ``value`` that has a dimension."""
    return next((len(tensor) for tensor in tensors_in(value) if tensor.ndim), None)


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Return ``value`` with ``change(tensor)`` in the place of each of its tensors.

    Args:
        change: called in the order of :func:`tensors_in`.
        value: a tensor, or nested tuples, lists, mappings and dataclasses, none of
            which holds itself. Mappings become dictionaries, the others keep their
            class; what is neither is returned as it is.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(change, item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [map_tensors(change, item) for item in value]
        if hasattr(value, "_fields"):  # a named tuple
            return type(value)(*items)
        return items if isinstance(value, list) else tuple(items)
    if is_dataclass(value) and not isinstance(value, type):
        given = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        return replace(value, **map_tensors(change, given))
    return value


def _items(value: object) -> list[object]:
    """Return what a container holds; of anything else nothing."""
    if isinstance(value, (dict, UserDict)):
        return list(value.values())
    if isinstance(value, (tuple, list)):
        return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        # A field may never have been set.
        return [getattr(value, field.name, None) for field in fields(value)]
    return []
