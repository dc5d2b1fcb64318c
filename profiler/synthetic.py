"""A profile of a model that cannot be measured here, by counting its operations.

The model runs once, on PyTorch's ``meta`` device: shapes only, no numbers. So the
gradients get ready in the true order, and each is given the share of backward's time
that the floating-point operations of backward have reached by then. Times are published
ones, or follow from the device's speed. Operations that are bound by memory
(normalisation, activations) count as free, which a real device denies; the profile says
in ``environment`` that it is synthetic.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from comm_plan.errors import InputError, one_line
from comm_plan.nested import tensors_in
from comm_plan.plans import Device, Profile
from comm_plan.plans.document import refused_as
from comm_plan.plans.parameters import trainable
from comm_plan.profiler.assembly import check_parameters
from comm_plan.profiler.describe import describe_model, tensor_timing
from comm_plan.profiler.timings import Measurable
from comm_plan.workloads.checks import copied


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
        InputError: the model has no trainable parameter, or one that gets no gradient
            or cannot be planned, or a time is out of range.
    """
    check_parameters(name, trainable(model))
    shadow = _on_meta(copy.deepcopy(model)).train()

    def loss() -> torch.Tensor:
        outputs = tensors_in(shadow(inputs.to("meta")))
        return torch.stack([output.sum() for output in outputs]).sum()

    counted = _count(name, trainable(shadow), loss)
    return counted.profile(
        name,
        device_name,
        "times given, not measured; backward spread over the tensors by "
        "floating-point operations",
        batch_size=batch_size,
        forward_s=forward_s,
        backward_s=backward_s,
        update_s=update_s,
    )


def profile_from_speed(workload: Measurable, flops_per_s: float) -> Profile:
    """Return the profile of ``workload`` on a device of which only the speed is known.

    The optimizer's step counts as free.

    Args:
        workload: its model, a batch and its loss; the model stays as it is.
        flops_per_s: floating-point operations that the device really does in a second,
            two for a multiplication and addition; of GPUs often half of the peak.

    Raises:
        InputError: the speed is not above 0, or leads to times out of range; the model
            cannot be copied, has no trainable parameter, or one that gets no gradient
            or cannot be planned, or needs numbers to run.
    """
    if not flops_per_s > 0:
        raise InputError(f"{flops_per_s} operations a second: give more than 0")
    check_parameters(workload.name, trainable(workload.model))
    shadow = _on_meta(copied(workload.model, "measure it instead")).train()
    batch = next(workload.batches(0, 1, 0, 0))
    try:
        counted = _count(
            workload.name, trainable(shadow), lambda: workload.loss(shadow, batch)
        )
    except (NotImplementedError, RuntimeError) as error:
        raise InputError(
            f"{workload.name} cannot be counted without numbers: "
            f"{one_line(str(error))}: profile it on a device"
        ) from error
    return counted.profile(
        workload.name,
        f"{flops_per_s:.4g} operations/s",
        "floating-point operations over the device's speed, not measured; the "
        "optimizer's step is free",
        batch_size=workload.batch_size,
        forward_s=counted.forward_flops / flops_per_s,
        backward_s=counted.backward_flops / flops_per_s,
        update_s=0.0,
    )


def _on_meta(model: nn.Module) -> nn.Module:
    """Move ``model`` to ``meta``, where ``Module.to`` alone unties tied weights."""
    places = list(model.named_parameters(remove_duplicate=False))
    model.to("meta")
    moved: dict[nn.Parameter, nn.Parameter] = {}
    for name, parameter in places:
        path, _, attribute = name.rpartition(".")
        module = model.get_submodule(path)
        own = getattr(module, attribute)
        setattr(module, attribute, moved.setdefault(parameter, own))
    return model


@dataclass(frozen=True)
class _Counted:
    """Operations of one iteration.

    Attributes:
        parameters: the trainable ones, by name.
        forward_flops: operations of forward.
        backward_flops: operations of backward.
        ready_shares: the share of backward's operations done when each gradient is
            ready, in ready order.
    """

    parameters: dict[str, nn.Parameter]
    forward_flops: int
    backward_flops: int
    ready_shares: dict[str, float]

    def profile(
        self,
        name: str,
        device_name: str,
        how: str,
        *,
        batch_size: int,
        forward_s: float,
        backward_s: float,
        update_s: float,
    ) -> Profile:
        """Return the profile of the model ``name``; ``how`` says where it comes from.

        Raises:
            InputError: a time is out of range.
        """
        with refused_as(f"the profile of {name}"):
            return Profile(
                model=describe_model(name, self.parameters),
                device=Device(type="cpu", name=device_name),
                environment={"synthetic": how},
                batch_size=batch_size,
                forward_s=forward_s,
                backward_s=backward_s,
                update_s=update_s,
                tensors=tuple(
                    tensor_timing(key, self.parameters[key], ready_s=share * backward_s)
                    for key, share in self.ready_shares.items()
                ),
            )


def _count(
    name: str, parameters: dict[str, nn.Parameter], loss: Callable[[], torch.Tensor]
) -> _Counted:
    """Count the operations of ``loss`` and of its backward."""
    reached: dict[str, int] = {}
    counter = FlopCounterMode(display=False)
    for key, parameter in parameters.items():

        def ready(_: torch.Tensor, key: str = key) -> None:
            reached[key] = counter.get_total_flops()

        parameter.register_post_accumulate_grad_hook(ready)
    with counter:
        value = loss()
        forward = counter.get_total_flops()
        value.backward()
    missing = parameters.keys() - reached.keys()
    if missing:
        raise InputError(
            f"parameters of {name} get no gradient: {', '.join(sorted(missing))}: "
            "freeze them with requires_grad_(False)"
        )
    grads = {key: parameter.grad for key, parameter in parameters.items()}
    sparse = [key for key, g in grads.items() if g is not None and g.is_sparse]
    if sparse:
        raise InputError(
            f"gradients of {name} are sparse, and how many rows they have is in the "
            f"data: {', '.join(sparse)}: profile the model itself"
        )
    backward = counter.get_total_flops() - forward
    done = accumulate((flops - forward for flops in reached.values()), max)
    shares = [flops / backward if backward else 1.0 for flops in done]
    return _Counted(
        parameters, forward, backward, dict(zip(reached, shares, strict=True))
    )
