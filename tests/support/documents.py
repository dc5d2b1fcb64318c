"""Small documents by hand: profiles, networks and what they consist of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from comm_plan.plans import (
    CollectiveCost,
    CompressionCost,
    Device,
    Fit,
    Model,
    Network,
    Profile,
    Sample,
    Segment,
    TensorTiming,
    fingerprint,
)


def tensor(name, shape, ready_s=0.0, *, dtype="float32", layer=None):
    """Return a tensor that is ready at ``ready_s``; its layer is in its name."""
    return TensorTiming(
        name=name,
        layer=layer or name.rpartition(".")[0] or name,
        shape=shape,
        numel=math.prod(shape),
        dtype=dtype,
        ready_s=ready_s,
    )


def profile_of(tensors: Iterable[TensorTiming], **changes) -> Profile:
    """Return a profile of ``tensors``; backward ends with the last of them."""
    tensors = tuple(tensors)
    parts = {
        "model": Model(
            name="toy",
            fingerprint=fingerprint((t.name, t.shape, t.dtype) for t in tensors),
            parameters=sum(t.numel for t in tensors),
        ),
        "device": Device(type="cpu", name="test"),
        "batch_size": 1,
        "forward_s": 0.0,
        "backward_s": tensors[-1].ready_s,
        "update_s": 0.0,
        "tensors": tensors,
    }
    return Profile(**(parts | changes))


def profile(
    backward_s: Sequence[float],
    numels: Sequence[int],
    forward_s: float = 0.0,
    update_s: float = 0.0,
    dtypes: Sequence[str] | None = None,
    layers: Sequence[str] | None = None,
    compression: dict[str, tuple[CompressionCost, ...]] | None = None,
) -> Profile:
    """Return a profile: seconds of backward before each gradient, in ready order."""
    dtypes = dtypes or ["float32"] * len(numels)
    layers = layers or [f"layer{i}" for i in range(len(numels))]
    ready_s, tensors = 0.0, []
    for index, numel in enumerate(numels):
        ready_s += backward_s[index]
        layer = layers[index]
        tensors.append(
            tensor(
                f"{layer}.{index}",
                (numel,),
                ready_s,
                dtype=dtypes[index],
                layer=layer,
            )
        )
    return profile_of(
        tensors, forward_s=forward_s, update_s=update_s, compression=compression or {}
    )


def fit(*segments: tuple[int, float, float]) -> CollectiveCost:
    """Return a cost from (from_nbytes, alpha_s, beta_s_per_byte) segments."""
    return CollectiveCost(
        fit=Fit(
            segments=tuple(
                Segment(from_nbytes=n, alpha_s=a, beta_s_per_byte=b)
                for n, a, b in segments
            )
        )
    )


def samples(*points: tuple[int, float]) -> CollectiveCost:
    """Return a cost from (nbytes, seconds) samples."""
    return CollectiveCost(
        samples=tuple(
            Sample(nbytes=n, median_s=s, min_s=s, p95_s=s, iterations=20)
            for n, s in points
        )
    )


def network(world_size: int = 4, **collectives: CollectiveCost) -> Network:
    """Return a network; all-reduce defaults to 1 ms + 10 ns a byte."""
    collectives.setdefault("allreduce", fit((0, 1e-3, 1e-8)))
    return Network(backend="gloo", world_size=world_size, collectives=collectives)


def compression(**kinds: tuple[float, float]) -> dict[str, tuple[CompressionCost, ...]]:
    """Return profile costs: kind=(fixed_s, seconds per element), one density each."""
    return {
        kind: tuple(
            CompressionCost(
                numel=n, density=d, compress_s=f + s * n, decompress_s=(f + s * n) / 2
            )
            for n in (1, 1_000_000)
            for d in ((0.001, 0.1) if kind == "topk" else (1.0,))
        )
        for kind, (f, s) in kinds.items()
    }
