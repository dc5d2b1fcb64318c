"""Which engine averages the gradients of which parameters: never two the same."""

from __future__ import annotations

import gc
import weakref
from typing import Protocol

from torch import nn

from comm_plan.errors import InputError


class Owner(Protocol):
    """What is asked of an engine."""

    @property
    def model(self) -> nn.Module:
        """Whose gradients it averages."""

    def close(self) -> None:
        """Average them no longer."""


_owners: weakref.WeakValueDictionary[int, Owner] = weakref.WeakValueDictionary()
"""All that are open, by their ids."""


def claim(engine: Owner) -> None:
    """Note that ``engine`` averages the gradients of its model."""
    _owners[id(engine)] = engine


def release(engine: Owner) -> None:
    """Note that it does no longer."""
    _owners.pop(id(engine), None)


def close_owner_of(model: nn.Module) -> None:
    """Close the engine of ``model``, compiled or not, if there is one.

    Raises:
        InputError: some of its parameters are averaged by the engine of another model.
    """
    for engine in _sharing_with(model):
        if engine.model is model or _parameters(engine.model) == _parameters(model):
            engine.close()
    if _sharing_with(model):
        gc.collect()  # an engine may outlive its model until then
    for engine in _sharing_with(model):
        shared = _parameters(engine.model)
        name = next(n for n, p in model.named_parameters() if p in shared)
        raise InputError(
            f"parameter {name} belongs to another model too, whose engine averages it: "
            "close that engine, or plan both as one model"
        )


def _sharing_with(model: nn.Module) -> list[Owner]:
    """Return the engines that average a parameter of ``model``."""
    own = _parameters(model)
    engines = [reference() for reference in _owners.valuerefs()]
    return [
        engine
        for engine in engines
        if engine is not None and not own.isdisjoint(_parameters(engine.model))
    ]


def _parameters(model: nn.Module) -> set[nn.Parameter]:
    return set(model.parameters())
