"""Small profiles and networks that the planner's tests are about."""

import pytest

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


def make_profile(
    backward_s,
    numels,
    forward_s=0.0,
    update_s=0.0,
    dtypes=None,
    layers=None,
    compression=None,
):
    """Return a profile: seconds of backward before each gradient, in ready order."""
    dtypes = dtypes or ["float32"] * len(numels)
    layers = layers or [f"layer{i}" for i in range(len(numels))]
    ready, tensors = 0.0, []
    for index, numel in enumerate(numels):
        ready += backward_s[index]
        tensors.append(
            TensorTiming(
                name=f"{layers[index]}.{index}",
                layer=layers[index],
                shape=(numel,),
                numel=numel,
                dtype=dtypes[index],
                ready_s=ready,
            )
        )
    prints = fingerprint((t.name, t.shape, t.dtype) for t in tensors)
    return Profile(
        model=Model(name="toy", fingerprint=prints, parameters=sum(numels)),
        device=Device(type="cpu", name="test"),
        batch_size=1,
        forward_s=forward_s,
        backward_s=ready,
        update_s=update_s,
        tensors=tuple(tensors),
        compression=compression or {},
    )


def fit(*segments):
    """Return a cost from (from_nbytes, alpha_s, beta_s_per_byte) segments."""
    return CollectiveCost(
        fit=Fit(
            segments=tuple(
                Segment(from_nbytes=n, alpha_s=a, beta_s_per_byte=b)
                for n, a, b in segments
            )
        )
    )


def samples(*points):
    """Return a cost from (nbytes, seconds) samples."""
    return CollectiveCost(
        samples=tuple(
            Sample(nbytes=n, median_s=s, min_s=s, p95_s=s, iterations=20)
            for n, s in points
        )
    )


def make_network(world_size=4, **collectives):
    """Return a network; all-reduce defaults to 1 ms + 10 ns a byte."""
    collectives.setdefault("allreduce", fit((0, 1e-3, 1e-8)))
    return Network(backend="gloo", world_size=world_size, collectives=collectives)


def compression(**kinds):
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


class Builders:
    """The builders above, for a fixture to hand out."""

    profile = staticmethod(make_profile)
    network = staticmethod(make_network)
    fit = staticmethod(fit)
    samples = staticmethod(samples)
    compression = staticmethod(compression)


@pytest.fixture(scope="session")
def build():
    """The builders of profiles and networks."""
    return Builders
