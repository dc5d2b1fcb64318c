"""Second moments of any other layer, by ``torch.func``.

The layer's forward runs once more, vectorised over samples (``vmap``), and its pullback
turns every sample's output gradient into that sample's parameter gradients. It needs no
formula, but repeats the forward and forms per-sample gradients, a few samples at a
time. A layer that draws random numbers would draw others: ``vmap`` refuses it. One that
changes its buffers would change them twice: it gets copies, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.func import functional_call, vjp, vmap

from comm_plan.runtime.second_moments.closed_forms import CHUNK_NUMEL


def second_moments(
    module: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    inputs: Sequence[torch.Tensor],
    g: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Return the second moments of ``parameters`` by name.

    Args:
        module: the layer.
        parameters: its own parameters, by their names in it.
        inputs: its positional arguments, each [B, ...].
        g: [B, ...], the gradient of the batch's mean loss with respect to its output.

    Raises:
        RuntimeError: ``torch.func`` cannot vectorise the layer, or its forward changes
            its buffers.
    """
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    versions = {name: buffer._version for name, buffer in buffers.items()}
    values = {name: parameter.detach() for name, parameter in parameters.items()}
    numel = sum(value.numel() for value in values.values())
    size = max(1, CHUNK_NUMEL // numel)

    def sample_gradients(
        g: torch.Tensor, *inputs: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        def forward(values: dict[str, torch.Tensor]) -> torch.Tensor:
            batch_of_one = tuple(x.unsqueeze(0) for x in inputs)
            state = values | buffers
            output: torch.Tensor = functional_call(module, state, batch_of_one)
            return output.squeeze(0)

        pullback = vjp(forward, values)[1]
        gradients: dict[str, torch.Tensor] = pullback(g)[0]
        return gradients

    totals = {name: torch.zeros_like(value) for name, value in values.items()}
    parts = zip(*(torch.split(x, size) for x in (g, *inputs)), strict=True)
    for part in parts:
        for name, gradients in vmap(sample_gradients)(*part).items():
            totals[name] += gradients.square().sum(0)
    for name, buffer in buffers.items():
        if buffer._version != versions[name]:
            raise RuntimeError(f"its forward changes its buffer {name}")
    return totals
