"""Before the first step: plan, model and all ranks must fit together.

The checks name the first difference and its remedy; nothing is communicated under a
plan that any rank could read differently.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from comm_plan import __version__
from comm_plan.errors import MismatchError
from comm_plan.plans import Plan, Spec
from comm_plan.plans.parameters import (
    dtype_name,
    model_fingerprint,
    named,
    trainable,
)
from comm_plan.runtime.refusals import check_dense
from comm_plan.transports.base import Transport
from comm_plan.transports.settings import debugging, difference

ENVIRONMENT = ("NCCL_ALGO", "NCCL_PROTO")
"""Variables that decide which messages the backends exchange."""


def check_settings(settings: Mapping[str, object], transport: Transport) -> None:
    """Check that all ranks were given the same; a collective call.

    Args:
        settings: by name, what makes ranks communicate or compute differently; values
            that pickle and have a repr to compare them by.
        transport: the ranks.

    Raises:
        MismatchError: on every rank, naming the first setting that differs from rank
            0's, and the ranks where it does.
    """
    shown = {name: repr(value) for name, value in settings.items()}
    everyone = transport.gather_objects(shown)
    found = difference(everyone)
    if found:
        raise MismatchError(found)


def installed() -> dict[str, object]:
    """Return the settings that come with the installation and the environment."""
    versions = {
        "version of torch": torch.__version__,
        "version of comm-plan": __version__,
    }
    variables = {f"${name}": os.environ.get(name, "") for name in ENVIRONMENT}
    return {**versions, **variables, **debugging()}


def check_device(model: nn.Module, transport: Transport) -> None:
    """Check that ``transport`` moves what is where all of ``model`` is.

    Raises:
        MismatchError: a parameter is on another kind of device, or on another one than
            the rest.
    """
    moved = transport.device.type
    devices: dict[torch.device, str] = {}
    for name, parameter in trainable(model).items():
        devices.setdefault(parameter.device, name)
        if parameter.device.type != moved:
            raise MismatchError(
                f"parameter {name} is on {parameter.device.type}, and the ranks talk "
                f"by {transport.backend}, which moves what is on {moved} here: bring "
                "the model there, or join the run by another backend"
            )
    if len(devices) > 1:
        (first, one), (second, other), *_ = devices.items()
        raise MismatchError(
            f"parameter {one} is on {first}, {other} on {second}: an engine serves "
            "one device, so start a rank for each"
        )


def check_plan(plan: Plan, model: nn.Module, world_size: int) -> None:
    """Check that ``plan`` can be executed for ``model`` by ``world_size`` ranks.

    Raises:
        MismatchError: another world size; a tensor that is missing in the plan or in
            the model; other shapes or dtypes; a bucket of mixed dtypes; a compressor
            that cannot take a tensor's dtype.
    """
    if plan.world_size != world_size:
        raise MismatchError(
            f"the plan is for {plan.world_size} ranks, this run has {world_size}: "
            f"start {plan.world_size} (torchrun, mpirun, train --local-ranks), or "
            f"solve with --world-size {world_size}"
        )
    parameters = trainable(model)
    _check_names(plan, parameters)
    fingerprint_here = model_fingerprint(model)
    if plan.model.fingerprint != fingerprint_here:
        raise MismatchError(
            f"plan is for model {plan.model.name} ({plan.model.fingerprint[:19]}), "
            "this model has the same names but other shapes or dtypes "
            f"({fingerprint_here[:19]}): profile it and solve again"
        )
    for bucket in plan.buckets:
        _check_dtypes(bucket.tensors, bucket.compressor, parameters)


def check_ranks(plan: Plan, model: nn.Module, transport: Transport) -> None:
    """Check that all ranks hold the same plan and the same parameters.

    Those that are frozen too, which are brought to rank 0's as well.

    Raises:
        MismatchError: on every rank, naming the first difference to rank 0.
    """
    own = {
        f"parameter {name}": _described(p) + ("" if p.requires_grad else ", frozen")
        for name, p in named(model).items()
    }
    plans, parameters = zip(*transport.gather_objects((plan.sha256, own)), strict=True)
    for rank, sha256 in enumerate(plans):
        if sha256 != plans[0]:
            raise MismatchError(
                f"rank {rank} has plan {sha256[:12]}, rank 0 has {plans[0][:12]}: "
                "give every rank the same plan file"
            )
    _check_same(parameters)


def check_buffers(model: nn.Module, transport: Transport) -> None:
    """Check that all ranks hold the same buffers, but for their values.

    Raises:
        InputError: one has no shape yet, or is sparse, and there are other ranks.
        MismatchError: as for :func:`check_ranks`.
    """
    if transport.world_size == 1:
        return
    remedy = "make it dense, or pass broadcast_buffers=False in a loop of your own"
    for name, buffer in model.named_buffers():
        check_dense(f"buffer {name}", buffer, remedy)
    own = {f"buffer {name}": _described(b) for name, b in model.named_buffers()}
    _check_same(transport.gather_objects(own))


def _described(tensor: torch.Tensor) -> str:
    return f"shape {list(tensor.shape)}, {dtype_name(tensor)}"


def _check_same(of_ranks: Sequence[Mapping[str, str]]) -> None:
    """Check that all ranks have the tensors, by name, that rank 0 has."""
    of_0 = of_ranks[0]
    for rank, of_rank in enumerate(of_ranks):
        for name in [*of_0, *of_rank]:
            on_rank, on_rank_0 = of_rank.get(name, "absent"), of_0.get(name, "absent")
            if on_rank != on_rank_0:
                raise MismatchError(
                    f"{name} on rank {rank}: {on_rank}; on rank 0: {on_rank_0}: build "
                    "the same model on every rank"
                )


def _check_names(plan: Plan, parameters: Mapping[str, nn.Parameter]) -> None:
    planned = dict.fromkeys(name for b in plan.buckets for name in b.tensors)
    for name in parameters:
        if name not in planned:
            raise MismatchError(
                f"tensor {name} of the model is missing in the plan for "
                f"{plan.model.name}: profile this model and solve again"
            )
    for name in planned:
        if name not in parameters:
            raise MismatchError(
                f"tensor {name} of the plan for {plan.model.name} is no trainable "
                "parameter of this model: profile this model and solve again"
            )


def _check_dtypes(
    names: tuple[str, ...], spec: Spec, parameters: Mapping[str, nn.Parameter]
) -> None:
    accepted = spec.dtypes
    first = dtype_name(parameters[names[0]])
    for name in names:
        dtype = dtype_name(parameters[name])
        if dtype not in accepted:
            raise MismatchError(
                f"compressor {spec.kind} cannot take tensor {name} of dtype {dtype}: "
                f"it takes {', '.join(accepted)}; keep the tensor dense (solve "
                f"--dense-layers {name})"
            )
        if dtype != first:
            raise MismatchError(
                f"tensors {names[0]} ({first}) and {name} ({dtype}) share a bucket, "
                "which has one dtype: profile the model as it is now, and solve again"
            )
