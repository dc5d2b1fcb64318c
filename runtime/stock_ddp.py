"""A plan for those who stay with PyTorch's DistributedDataParallel.

DDP can merge as a plan says, as its buckets may have sizes of their own (from torch
2.13 on), and it can cast to 16 bits in a communication hook. It cannot do more: its
hooks do not see which parameters a bucket holds, and it has one for all buckets. It
walks through the list of sizes once for the parameters of each dtype and device, so the
list describes the plan only where all have the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from comm_plan.errors import InputError
from comm_plan.plans import Plan, as_plan
from comm_plan.plans.export import DDP_KINDS, ddp_hook_name, only_kind
from comm_plan.plans.parameters import dtype_name, trainable
from comm_plan.runtime.agreement import check_plan

MIB = 2**20

Hook = Callable[..., Any]
"""What ``DistributedDataParallel.register_comm_hook`` takes."""


def ddp_options(model: nn.Module, plan: Plan | str) -> dict[str, list[float]]:
    """Return the arguments with which DDP merges as ``plan`` says.

    ::

        model = DistributedDataParallel(model, **comm_plan.ddp_options(model, plan))
        if hook := comm_plan.ddp_hook(plan):
            model.register_comm_hook(None, hook)

    From the second iteration on, when DDP has seen in which order gradients get ready;
    if that is the profile's order.

    Args:
        model: the model that the plan is for, not wrapped.
        plan: a plan that DDP can follow, or the path of one.

    Raises:
        DocumentError: the plan cannot be read.
        InputError: DDP cannot do what the plan says, or torch is too old.
        MismatchError: the plan is for another model.
    """
    if "bucket_cap_mb_list" not in signature(DistributedDataParallel).parameters:
        raise InputError(
            f"DDP of torch {torch.__version__} takes no size for each bucket: it needs "
            "torch 2.13; or use comm_plan.parallelize"
        )
    plan, _ = _followable(plan)
    check_plan(plan, model, plan.world_size)
    parameters = trainable(model)
    _check_alike(parameters.values())
    nbytes = {name: p.nbytes for name, p in parameters.items()}
    return {
        "bucket_cap_mb_list": [
            sum(nbytes[name] for name in bucket.tensors) / MIB
            for bucket in plan.buckets
        ]
    }


def ddp_hook(plan: Plan | str) -> Hook | None:
    """Return the communication hook that casts as ``plan`` says; None: it does not.

    Raises:
        DocumentError: the plan cannot be read.
        InputError: DDP cannot do what the plan says, or not in this build of torch.
    """
    _, kind = _followable(plan)
    if kind == "dense":
        return None
    if kind == "bf16" and not (
        torch.version.cuda or torch.version.hip or torch.xpu.is_available()
    ):
        raise InputError(
            f"DDP of torch {torch.__version__}, which is built for no GPU, cannot cast "
            "to bf16: solve with --compressor fp16, or use comm_plan.parallelize"
        )
    hook: Hook = getattr(default_hooks, ddp_hook_name(kind))
    return hook


def _followable(plan: Plan | str) -> tuple[Plan, str]:
    """Return the plan and the kind of all its buckets."""
    plan = as_plan(plan)
    return plan, only_kind(plan, "DDP", DDP_KINDS)


def _check_alike(parameters: Iterable[torch.Tensor]) -> None:
    """Raise InputError where ``parameters`` differ in dtype or device."""
    kinds = sorted({f"{dtype_name(p)} on {p.device}" for p in parameters})
    if len(kinds) > 1:
        raise InputError(
            "DDP cannot do what the plan says for parameters of several dtypes or "
            f"devices, here {', '.join(kinds)}: use comm_plan.parallelize"
        )
