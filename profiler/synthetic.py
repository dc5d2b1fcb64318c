"""A profile of a model that cannot be measured here, from its published times.

The model runs once, on PyTorch's ``meta`` device: shapes only, no numbers. So the
gradients get ready in the true order, and each is given the share of ``backward_s``
that the floating-point operations of backward have reached by then. Operations that are
bound by memory (normalisation, activations) count as free, which a real device denies;
the profile says in ``environment`` that it is synthetic.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from comm_plan.errors import InputError
from comm_plan.plans import Device, Profile
from comm_plan.plans.parameters import trainable
from comm_plan.profiler.describe import describe_model, tensor_timing


def profile_from_model(
    model: nn.Module,
    inputs: torch.Tensor,
    *,
    name: str,
    forward_s: float,
    backward_s: float,
    update_s: float,
    batch_size: int,
    device_name: str = "synthetic",
) -> Profile:
    """Return a synthetic profile of ``model``, which stays as it is.

    Args:
        model: any module without custom CUDA or CPU kernels; it may be on ``meta``.
        inputs: what ``model`` is called with; only its shape and dtype count.
        name: what the profile calls the model.
        forward_s: published or estimated time of forward.
        backward_s: likewise of backward; it is spread over the tensors.
        update_s: likewise of the optimizer's step.
        batch_size: samples to which the times belong.
        device_name: the device to which they belong.

    Raises:
        InputError: the model has a trainable parameter that gets no gradient.
    """
    shadow = copy.deepcopy(model).to("meta").train()
    parameters = trainable(shadow)
    shares = _flop_shares(shadow, parameters, inputs.to("meta"))
    missing = parameters.keys() - shares.keys()
    if missing:
        raise InputError(
            f"parameters of {name} get no gradient: {', '.join(sorted(missing))}: "
            "freeze them with requires_grad_(False)"
        )
    return Profile(
        model=describe_model(name, parameters),
        device=Device(type="cpu", name=device_name),
        environment={
            "synthetic": "times given, not measured; backward spread over the tensors "
            "by floating-point operations"
        },
        batch_size=batch_size,
        forward_s=forward_s,
        backward_s=backward_s,
        update_s=update_s,
        tensors=tuple(
            tensor_timing(key, parameters[key], ready_s=share * backward_s)
            for key, share in shares.items()
        ),
    )


def _flop_shares(
    model: nn.Module, parameters: dict[str, nn.Parameter], inputs: torch.Tensor
) -> dict[str, float]:
    """Return the share of backward's operations done when each gradient is ready."""
    reached: dict[str, int] = {}
    counter = FlopCounterMode(display=False)
    for name, parameter in parameters.items():

        def ready(_: torch.Tensor, name: str = name) -> None:
            reached[name] = counter.get_total_flops()

        parameter.register_post_accumulate_grad_hook(ready)
    with counter:
        loss = torch.stack([out.sum() for out in _tensors(model(inputs))]).sum()
        before = counter.get_total_flops()
        loss.backward()
    total = counter.get_total_flops() - before
    if total == 0:
        return {name: 1.0 for name in reached}
    shares = accumulate(((flops - before) / total for flops in reached.values()), max)
    return dict(zip(reached, shares, strict=True))


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested tuples and lists."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, Iterable):
        for part in outputs:
            yield from _tensors(part)
