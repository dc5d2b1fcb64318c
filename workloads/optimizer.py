"""Another optimizer, or other settings of it, than a workload brings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from comm_plan.errors import InputError
from comm_plan.workloads.base import MakeOptimizer, Workload

if TYPE_CHECKING:
    import torch
    from torch import nn

OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
"""Classes of ``torch.optim`` by the names that users write."""

SETTINGS = ("lr", "momentum", "nesterov", "weight_decay")


@dataclass(frozen=True)
class OptimizerOptions:
    """What differs from the workload's own optimizer; None: nothing does.

    Attributes:
        optimizer: a name in OPTIMIZERS; it starts from PyTorch's defaults.
        lr: learning rate.
        momentum: of SGD.
        nesterov: whether SGD's momentum looks ahead.
        weight_decay: as the optimizer means it: added to the gradient by SGD and Adam,
            taken from the parameters by AdamW.
        clip_norm: the gradient of all parameters, as the optimizer finds it, is scaled
            down to this norm if it is larger.
    """

    optimizer: str | None = None
    lr: float | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    weight_decay: float | None = None
    clip_norm: float | None = None

    @property
    def settings(self) -> dict[str, float]:
        """Those of an optimizer's parameter groups that are given."""
        given = {name: getattr(self, name) for name in SETTINGS}
        return {name: value for name, value in given.items() if value is not None}


def with_optimizer(workload: Workload, options: OptimizerOptions) -> Workload:
    """Return ``workload`` with its optimizer changed, in all parameter groups alike.

    Raises:
        InputError: when the optimizer is made: it has no such setting.
    """
    if options == OptimizerOptions():
        return workload
    make = workload.optimizer
    if options.optimizer is not None:
        make = _named(options.optimizer)

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        made = make(parameters)
        for group in made.param_groups:
            _check(type(made).__name__, group, options.settings)
            group.update(options.settings)
        if options.clip_norm is not None:
            made.register_step_pre_hook(_clipping(options.clip_norm))
        return made

    return replace(workload, optimizer=optimizer)


def _named(name: str) -> MakeOptimizer:
    import torch

    make: MakeOptimizer = getattr(torch.optim, OPTIMIZERS[name])
    return make


def _clipping(norm: float) -> Callable[..., None]:
    """Return a hook that clips before each step."""
    from torch.nn.utils import clip_grad_norm_

    def clip(optimizer: torch.optim.Optimizer, *_: object) -> None:
        groups = optimizer.param_groups
        clip_grad_norm_([p for group in groups for p in group["params"]], norm)

    return clip


def _check(kind: str, group: dict[str, object], settings: dict[str, float]) -> None:
    unknown = [name.replace("_", "-") for name in settings if name not in group]
    if unknown:
        raise InputError(
            f"--{unknown[0]}: {kind} has none: leave it out, or choose --optimizer sgd"
        )
    if not settings.get("nesterov"):
        return
    if not {**group, **settings}["momentum"]:
        raise InputError("--nesterov needs momentum: give --momentum above 0")
    if group.get("dampening"):
        raise InputError(
            f"--nesterov: the workload's {kind} has dampening, with which there is no "
            "Nesterov momentum: leave one of them out"
        )
