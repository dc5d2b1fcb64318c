"""Parameters as the documents name them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from comm_plan.plans import Model, TensorTiming, fingerprint
from comm_plan.plans.parameters import dtype_name, numel_of


def describe_model(name: str, parameters: Mapping[str, nn.Parameter]) -> Model:
    """Return the document's model of these trainable parameters."""
    tensors = [(key, tuple(p.shape), dtype_name(p)) for key, p in parameters.items()]
    numel = numel_of(parameters)
    return Model(name=name, fingerprint=fingerprint(tensors), parameters=numel)


def tensor_timing(name: str, parameter: nn.Parameter, ready_s: float) -> TensorTiming:
    """Return the document's entry of one parameter."""
    return TensorTiming(
        name=name,
        layer=name.rpartition(".")[0],
        shape=tuple(parameter.shape),
        numel=parameter.numel(),
        dtype=dtype_name(parameter),
        ready_s=ready_s,
    )
