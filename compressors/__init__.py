"""One file per method; a new one is a spec in ``plans``, a file and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from comm_plan.compressors.base import Compressor, Context, Slot

COMPRESSORS = {
    "dense": "dense:DenseCompressor",
    "fp16": "half:HalfCompressor",
    "bf16": "half:HalfCompressor",
    "terngrad": "terngrad:TernGradCompressor",
    "topk": "topk:TopKCompressor",
    "vgc": "vgc:VgcCompressor",
    "strom": "strom:StromCompressor",
    "hybrid": "hybrid:HybridCompressor",
    "qsgd": "qsgd:QsgdCompressor",
}
"""Module and class of each kind; loaded on first use: planning needs no torch."""


def compressor_class(kind: str) -> type[Compressor]:
    """Return the class that implements the compressor ``kind``."""
    module, name = COMPRESSORS[kind].split(":")
    loaded: Any = getattr(import_module(f"comm_plan.compressors.{module}"), name)
    return loaded  # type: ignore[no-any-return]


def build(
    spec: Any, collective: str, slots: Sequence[Slot], context: Context
) -> Compressor:
    """Return the compressor of one bucket.

    Args:
        spec: the bucket's ``compressor`` in the plan.
        collective: the bucket's ``collective``, which may change the wire format.
        slots: the bucket's tensors, in order.
        context: the run.
    """
    return compressor_class(spec.kind)(spec, collective, slots, context)
