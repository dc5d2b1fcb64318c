"""One file per method; the spec that it implements is in ``comm_plan.plans``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

from comm_plan.plans.compression import Spec

if TYPE_CHECKING:
    from comm_plan.compressors.base import Compressor, Context, Slot


def _implementation(spec: type[Spec], device_type: str) -> type[Compressor]:
    on_gpu = spec.on_gpu if device_type == "cuda" else None
    module, name = (on_gpu or spec.implementation).split(":")
    loaded = import_module(f"comm_plan.compressors.{module}")
    return cast("type[Compressor]", getattr(loaded, name))


def build(
    spec: Spec, collective: str, slots: Sequence[Slot], context: Context
) -> Compressor:
    """Return the compressor of one bucket.

    Args:
        spec: the bucket's ``compressor`` in the plan.
        collective: the bucket's ``collective``, which may change the wire format.
        slots: the bucket's tensors, in order.
        context: the run.
    """
    made = _implementation(type(spec), context.device.type)
    return made(spec, collective, slots, context)
