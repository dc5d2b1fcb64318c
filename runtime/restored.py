"""What training changes of a model and of the process, put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from comm_plan.runtime import randomness
from comm_plan.workloads.modes import kept, training


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Train; put all that this changes of model and process back afterwards.

    Parameters, buffers, gradients, which modules train, and random numbers.

    Modules may hold other tensors as buffers by then: they get their own back.
    """
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    tensors = [*model.parameters(), *model.buffers()]
    values = [tensor.detach().clone() for tensor in tensors]
    gradients = [parameter.grad for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    with randomness.kept(), kept(model):
        training(model)
        try:
            yield
        finally:
            for module, own in buffers:
                module._buffers.clear()
                module._buffers.update(own)
            with torch.no_grad():
                for tensor, value in zip(tensors, values, strict=True):
                    tensor.copy_(value)
            pairs = zip(model.parameters(), gradients, strict=True)
            for parameter, gradient in pairs:
                parameter.grad = gradient
