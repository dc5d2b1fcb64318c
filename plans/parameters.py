"""A model's parameters, as the documents name them; importable without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from comm_plan.plans.profile import fingerprint

if TYPE_CHECKING:
    import torch
    from torch import nn


COMPILED = "_orig_mod."
"""What ``torch.compile`` puts before the names of the parameters of what it wraps."""


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return all parameters, tied weights once, by name.

    A compiled model has the names of the model itself.
    """
    return {
        name.replace(COMPILED, ""): parameter
        for name, parameter in model.named_parameters()
    }


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return those of :func:`named` that get gradients now."""
    return {name: p for name, p in named(model).items() if p.requires_grad}


def numel_of(parameters: Mapping[str, nn.Parameter]) -> int:
    """Return the elements of all ``parameters`` together."""
    return sum(parameter.numel() for parameter in parameters.values())


def dtype_name(tensor: torch.Tensor) -> str:
    """Return ``float32`` for ``torch.float32``."""
    return str(tensor.dtype).removeprefix("torch.")


def model_fingerprint(model: nn.Module) -> str:
    """Return the fingerprint of ``model`` (see :func:`comm_plan.plans.fingerprint`)."""
    return fingerprint(
        (name, tuple(p.shape), dtype_name(p)) for name, p in trainable(model).items()
    )
