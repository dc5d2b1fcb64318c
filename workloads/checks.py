"""What the functions of a workload must take and return, checked whenever they run.

A function that breaks its promise fails late and far from its cause, or trains nothing
at all: an optimizer of other parameters than the copy that is trained raises no error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import nn

from comm_plan.errors import CommPlanError, WorkloadError, one_line
from comm_plan.workloads.base import (
    Batches,
    Evaluate,
    Loss,
    MakeOptimizer,
    Workload,
    one_epoch,
)


def copied(model: nn.Module, instead: str) -> nn.Module:
    """Return a deep copy of ``model``.

    Raises:
        WorkloadError: there is none, as it holds a lock perhaps, or what a forward has
            made; with what to do ``instead``.
    """
    try:
        return deepcopy(model)
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}", 200)
        raise WorkloadError(
            f"the model cannot be copied ({reason}): {instead}"
        ) from None


def checked(workload: Workload) -> Workload:
    """Return ``workload`` with functions that raise WorkloadError for what is wrong.

    And with a name that documents can hold, which its file's may not be.

    Raises:
        WorkloadError: one of its functions cannot take its arguments.
    """
    name = one_line(workload.name)
    check_data_arguments(name, workload.batches)
    check_arguments(name, "optimizer", workload.optimizer, "parameters")
    check_arguments(name, "loss", workload.loss, "model", "batch")
    check_arguments(name, "evaluate", workload.evaluate, "model")
    return replace(
        workload,
        name=name,
        optimizer=_checked_optimizer(name, workload.optimizer),
        batches=partial(one_epoch, workload.batches),
        loss=_checked_loss(name, workload.loss),
        evaluate=_checked_evaluate(name, workload.evaluate),
    )


def check_data_arguments(name: str, data: Batches) -> None:
    """Check that ``data`` takes what a data function is called with.

    Raises:
        WorkloadError: it does not.
    """
    check_arguments(name, "data", data, "rank", "world_size", "epoch", "seed")


def check_arguments(
    name: str, what: str, function: Callable[..., Any], *arguments: str
) -> None:
    """Check that ``function`` can be called with ``arguments``, by position.

    Args:
        name: of the workload.
        what: the function is for.
        function: of the user; one without a signature passes.
        arguments: their names.

    Raises:
        WorkloadError: it takes others.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # as of some that are written in C
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise WorkloadError(
            f"workload {name}: its {what} function is called with "
            f"({', '.join(arguments)}) and takes {signature} ({error}): let it take "
            "these arguments"
        ) from None


def kind(value: object) -> str:
    """Return what ``value`` is, in a few words."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"{type(value).__name__} {str(value)[:40]!r}".split("\n", 1)[0]


def _checked_optimizer(name: str, make: MakeOptimizer) -> MakeOptimizer:
    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        own = list(parameters)
        made = make(own)
        if not isinstance(made, torch.optim.Optimizer):
            raise WorkloadError(
                f"workload {name}: its optimizer function returned {kind(made)}: "
                "return a torch.optim.Optimizer"
            )
        _check_held(name, made, own)
        _check_step(name, made)
        return made

    return optimizer


def _check_held(
    name: str, optimizer: torch.optim.Optimizer, own: Iterable[nn.Parameter]
) -> None:
    handed = set(own)
    groups = optimizer.param_groups
    if any(p not in handed for group in groups for p in group["params"]):
        raise WorkloadError(
            f"workload {name}: its optimizer function made a "
            f"{type(optimizer).__name__} of other parameters than those of the model "
            "that is trained, which may be a copy: use the parameters that are handed "
            "in, or return the optimizer itself"
        )


def _check_step(name: str, optimizer: torch.optim.Optimizer) -> None:
    try:
        inspect.signature(optimizer.step).bind()
    except TypeError:
        raise WorkloadError(
            f"workload {name}: the step of its {type(optimizer).__name__} needs a "
            "closure, which runs the model more than once a step: take an optimizer "
            "such as SGD or AdamW"
        ) from None


def _checked_loss(name: str, loss: Loss) -> Loss:
    def scalar(model: nn.Module, batch: Any) -> torch.Tensor:
        try:
            value: object = loss(model, batch)
        except (CommPlanError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {one_line(str(error))}"
            raise WorkloadError(
                f"workload {name}: its model or loss failed: {said}"
            ) from error
        if not isinstance(value, torch.Tensor):
            raise WorkloadError(
                f"workload {name}: its loss is {kind(value)}: return a tensor that "
                "backward can be called on, without .item()"
            )
        if value.numel() != 1:
            raise WorkloadError(
                f"workload {name}: its loss has shape {list(value.shape)}: return its "
                "mean over the batch, as with reduction='mean'"
            )
        if torch.is_grad_enabled() and not value.requires_grad:
            raise WorkloadError(
                f"workload {name}: its loss does not depend on a parameter that takes "
                "gradients: compute it from the model's outputs, without detach() or "
                "no_grad()"
            )
        return value

    return scalar


def _checked_evaluate(name: str, evaluate: Evaluate) -> Evaluate:
    def metric(model: nn.Module) -> tuple[str, float] | None:
        result: object = evaluate(model)
        if result is None:
            return None
        if not isinstance(result, tuple) or not _is_metric(result):
            raise WorkloadError(
                f"workload {name}: its evaluate function returned "
                f"{kind(result)}: return a name and a number, such as "
                "('accuracy', 0.98), or None"
            )
        return result[0], float(result[1])

    return metric


def _is_metric(result: tuple[Any, ...]) -> bool:
    """Return whether ``result`` is a name and a number; a tensor of one counts."""
    if len(result) != 2 or not isinstance(result[0], str):
        return False
    value = result[1]
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, Real)


def first_batch(name: str, data: Batches) -> Any:
    """Return the first batch that a user's data function yields.

    Raises:
        WorkloadError: it takes other arguments, or yields none.
    """
    check_data_arguments(name, data)
    epoch: object = data(0, 1, 0, 0)
    if not isinstance(epoch, Iterable):
        raise WorkloadError(
            f"workload {name}: its data function returned {kind(epoch)}: let it yield "
            "batches"
        )
    for batch in epoch:
        return batch
    raise WorkloadError(
        f"workload {name}: its data function yields no batch for rank 0 of 1: let it "
        "yield at least one in each epoch"
    )
