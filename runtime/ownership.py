"""Which engine averages the gradients of which parameters: never two the same.

None that an optimizer takes may be left out, either. And what goes with an engine that
is dropped without being closed.
"""

from __future__ import annotations

import gc
import weakref
from typing import Protocol, TypeVar

import torch
from torch import nn

from comm_plan.errors import InputError, RunError
from comm_plan.plans.parameters import named, trainable
from comm_plan.transports.base import Transport


class Owner(Protocol):
    """What is asked of an engine."""

    @property
    def model(self) -> nn.Module:
        """Whose gradients it averages."""

    def close(self) -> None:
        """Average them no longer."""


OwnerT = TypeVar("OwnerT", bound=Owner)

_owners: weakref.WeakValueDictionary[int, Owner] = weakref.WeakValueDictionary()
"""All that are open, by their ids."""


def claim(engine: Owner) -> None:
    """Note that ``engine`` averages the gradients of its model."""
    _owners[id(engine)] = engine


def release(engine: Owner) -> None:
    """Note that it does no longer."""
    _owners.pop(id(engine), None)


def owners_of(model: nn.Module) -> list[Owner]:
    """Return the engine of ``model``, compiled or not, if there is one.

    Raises:
        InputError: some of its parameters are averaged by the engine of another model.
    """
    owners, others = _owners_and_others(model)
    if any(_shared(engine, model) for engine in others):
        del owners, others
        gc.collect()  # an engine may outlive its model until then
        owners, others = _owners_and_others(model)
    for engine in others:
        for name in _shared(engine, model):
            raise InputError(
                f"parameter {name} belongs to another model too, whose engine averages "
                "it: close that engine, or plan both as one model"
            )
    return owners


class LeftOut:
    """Finds parameters that are trained, but were not when the engine was made.

    They were frozen then, or have taken the place of others.

    Args:
        model: whose other parameters are averaged.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._averaged = tuple(trainable(model).values())  # so no other has their id
        self._ids = frozenset(map(id, self._averaged))
        self._of_others: weakref.WeakKeyDictionary[
            torch.optim.Optimizer, set[nn.Parameter]
        ] = weakref.WeakKeyDictionary()

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Check that ``optimizer``, which steps, takes no gradients of this rank alone.

        Raises:
            RunError: a parameter of the model would get one.
        """
        for group in optimizer.param_groups:
            if not self._ids.issuperset(map(id, group["params"])):
                self._check_others(optimizer)
                return

    def _check_others(self, optimizer: torch.optim.Optimizer) -> None:
        others = {
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) not in self._ids
            and parameter.requires_grad
            and parameter.grad is not None
        }
        if others == self._of_others.get(optimizer, set()):
            return
        for name, parameter in named(self._model).items():
            if parameter in others:
                raise RunError(
                    f"parameter {name} is trained, but was frozen or not there when "
                    "the engine was made, which does not average its gradients: plan "
                    "for the model as it is now, and call parallelize again"
                )
        self._of_others[optimizer] = others


def freed_with(engine: OwnerT, channel: Transport) -> weakref.finalize[..., OwnerT]:
    """Close ``channel`` when ``engine`` is dropped, if no other rank is needed for it.

    As of a group of gloo's, which has a thread and a connection to every rank.
    """

    def close() -> None:
        if channel.backend == "gloo":
            channel.close()

    found = weakref.finalize(engine, close)
    found.atexit = False
    return found


def _open() -> list[Owner]:
    engines = [reference() for reference in _owners.valuerefs()]
    return [engine for engine in engines if engine is not None]


def _owners_and_others(model: nn.Module) -> tuple[list[Owner], list[Owner]]:
    """Return the engines of this model, and those of others."""
    own = set(model.parameters())
    owners: list[Owner] = []
    others: list[Owner] = []
    for engine in _open():
        is_own = engine.model is model or set(engine.model.parameters()) == own
        (owners if is_own else others).append(engine)
    return owners, others


def _shared(engine: Owner, model: nn.Module) -> list[str]:
    """Return the names of parameters that ``engine`` averages and ``model`` trains."""
    averaged = set(trainable(engine.model).values())
    return [name for name, p in trainable(model).items() if p in averaged]
