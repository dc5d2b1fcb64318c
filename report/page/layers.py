"""Layers of a profile: their sizes, when they are ready, what each plan keeps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from comm_plan import units
from comm_plan.plans import Plan, Profile, TensorTiming
from comm_plan.report.page.blocks import (
    NONE,
    Block,
    Cell,
    Section,
    Table,
    count,
    nbytes,
    seconds,
    section,
)
from comm_plan.report.page.given import Given


def layers(given: Given) -> Section | None:
    """Return the layers of the profile, in ready order."""
    return section("layers", "Layers", _tables(given))


def _tables(given: Given) -> Iterator[Block]:
    profile = given.profile
    if profile is None:
        return
    compressing = [shown for shown in given.plans if not shown.plan.is_dense]
    kept = [_densities(shown.plan) for shown in compressing]
    names = tuple(f"sent by {shown.name}" for shown in compressing)
    yield Table(
        "layers in the order in which their gradients get ready",
        ("layer", "tensors", "numel", "bytes", "share", "ready", *names),
        tuple(
            (*_layer(profile, layer, tensors), *(_sent(d, tensors) for d in kept))
            for layer, tensors in _grouped(profile)
        ),
    )


def _grouped(profile: Profile) -> Iterator[tuple[str, list[TensorTiming]]]:
    for layer, tensors in groupby(profile.tensors, key=lambda tensor: tensor.layer):
        yield layer, list(tensors)


def _layer(
    profile: Profile, layer: str, tensors: list[TensorTiming]
) -> tuple[Cell, ...]:
    size = sum(tensor.nbytes for tensor in tensors)
    share = size / profile.nbytes
    return (
        Cell(layer),
        count(len(tensors)),
        count(sum(tensor.numel for tensor in tensors)),
        nbytes(size),
        Cell(units.percent(share), share),
        seconds(profile.backward_start_s + tensors[-1].ready_s),
    )


def _densities(plan: Plan) -> dict[str, float]:
    """Return the share of its elements that is sent of each tensor."""
    return {
        name: density
        for bucket in plan.buckets
        for name, density in zip(
            bucket.tensors,
            bucket.densities,
            strict=True,
        )
    }


def _sent(densities: dict[str, float], tensors: list[TensorTiming]) -> Cell:
    """Return the share of a layer's elements that a plan sends."""
    known = [t for t in tensors if t.name in densities]
    numel = sum(tensor.numel for tensor in known)
    if not numel:
        return Cell(NONE)
    share = sum(densities[tensor.name] * tensor.numel for tensor in known) / numel
    return Cell(units.percent(share), share)
