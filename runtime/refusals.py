"""What the engine refuses: models that are not its own, and what contradicts a wish."""

from __future__ import annotations

from typing import get_args

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from comm_plan.errors import InputError
from comm_plan.plans import Plan
from comm_plan.runtime.step import OnNonFinite, Setup


def check_seed(seed: int) -> None:
    """Check that random numbers can begin at ``seed``.

    Raises:
        InputError: it is below 0.
    """
    if seed < 0:
        raise InputError(f"seed {seed} is below 0: give one from 0 on")


def check_options(model: nn.Module, on_nonfinite: str, seed: int) -> None:
    """Check that the engine may average the gradients of ``model``.

    Raises:
        InputError: an unknown word for ``on_nonfinite``, a seed below 0, parameters
            that are sharded, have no shape yet or are sparse, or a model that DDP
            averages.
    """
    check_seed(seed)
    if on_nonfinite not in get_args(OnNonFinite):
        raise InputError(
            f"on_nonfinite {on_nonfinite!r} is unknown: use one of "
            f"{', '.join(get_args(OnNonFinite))}"
        )
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "placements"):  # a DTensor
            raise InputError(
                f"parameter {name} is sharded (DTensor), as by fully_shard: a plan "
                "averages whole gradients, give a model that is not sharded"
            )
        check_dense(f"parameter {name}", parameter, "make it dense")
    if isinstance(model, DistributedDataParallel):
        raise InputError(
            "the model is wrapped in DistributedDataParallel, which averages its "
            "gradients too: give model.module, and leave DDP out"
        )


def check_dense(what: str, tensor: torch.Tensor, remedy: str) -> None:
    """Check that ranks can exchange ``tensor``.

    Raises:
        InputError: it has no shape yet, or is sparse.
    """
    if is_lazy(tensor):
        raise InputError(
            f"{what} has no shape yet, as of a lazy module: call the model once before"
        )
    if tensor.layout is not torch.strided:
        raise InputError(
            f"{what} is {tensor.layout}; ranks exchange only dense tensors: {remedy}"
        )


def check_every_step(plan: Plan, where: str) -> None:
    """Check that ``plan`` averages in every step, as ``where`` takes for granted.

    Raises:
        InputError: it has local steps.
    """
    if plan.local_steps is not None:
        raise InputError(
            f"local steps: {where} evaluates and saves in the middle of a round, where "
            "the ranks' models differ: train in a loop of your own"
        )


def check_final(setup: Setup, scaler: torch.amp.GradScaler | None) -> None:
    """Check that a mean is final once it is in ``.grad``, as ``on_reduced`` needs it.

    Raises:
        InputError: it may still change, or the step be refused.
    """
    reasons = {
        f"on_nonfinite={setup.on_nonfinite!r} may still refuse the step when its last "
        "bucket is reduced: use 'propagate'": setup.on_nonfinite != "propagate",
        "a GradScaler may still refuse the step: train without": (
            scaler is not None and scaler.is_enabled()
        ),
        "find_unused_parameters=True fills in what only other ranks used at the end of "
        "the step: use all parameters": setup.find_unused_parameters,
    }
    for reason, holds in reasons.items():
        if holds:
            raise InputError(f"on_reduced: {reason}")


def check_never_refused(plan: Plan) -> None:
    """Check that no bucket needs flags that could refuse the step at its end.

    Nor momentum of the engine's, which is settled there, nor local steps.

    Raises:
        InputError: one does, or ``plan`` corrects momentum or has local steps.
    """
    if plan.local_steps is not None:
        raise InputError(
            "on_reduced: with local steps an optimizer takes the gradients of its own "
            "rank: step after backward"
        )
    if plan.momentum_correction:
        raise InputError(
            "on_reduced: the plan corrects momentum, which is settled at the end of a "
            "step: solve without"
        )
    for bucket in plan.buckets:
        if not bucket.compressor.carries_nonfinite:
            raise InputError(
                f"on_reduced: under {bucket.compressor.kind} the flags behind the last "
                "bucket may still refuse a step with inf or NaN: use dense, fp16 or "
                "bf16"
            )
