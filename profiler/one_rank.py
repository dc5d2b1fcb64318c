"""Engines of one rank, in which a method takes all that it can."""

from __future__ import annotations

import numpy as np

from comm_plan.plans import Bucket, Plan, PlannedModel, Profile, TensorTiming
from comm_plan.plans.compression import Dense, Spec
from comm_plan.plans.compression.rows import Rows
from comm_plan.runtime.engine import Engine
from comm_plan.transports.local import LocalTransport


def taken(profile: Profile, spec: type[Spec]) -> list[TensorTiming]:
    """Return the tensors that ``spec`` takes."""
    return [t for t in profile.tensors if t.rows is None and t.dtype in spec.dtypes]


def plan_by(profile: Profile, spec: Spec) -> Plan:
    """Return a bucket of all tensors that ``spec`` takes, and others for the rest.

    One for each other dtype, and one for each sparse gradient.
    """
    names = {tensor.name for tensor in taken(profile, type(spec))}
    members: dict[tuple[str, Spec], list[str]] = {}
    for tensor in profile.tensors:
        key, own = tensor.dtype, spec if tensor.name in names else Dense()
        if tensor.rows is not None:
            key, own = tensor.name, Rows()
        members.setdefault((key, own), []).append(tensor.name)
    return Plan(
        solver="single",
        model=PlannedModel(
            name=profile.model.name, fingerprint=profile.model.fingerprint
        ),
        world_size=1,
        backend=LocalTransport.backend,
        buckets=tuple(
            Bucket(
                tensors=tuple(names),
                compressor=own,
                collective=own.default_collective(),
            )
            for (_, own), names in members.items()
        ),
    )


def busy_s(engine: Engine, kind: str) -> float:
    """Return how long the last step's buckets of ``kind`` kept the thread busy."""
    assert engine.last_moments is not None
    of_buckets = engine.last_moments.busy_s()
    assert of_buckets is not None
    own = [bucket.planned.compressor.kind == kind for bucket in engine.buckets]
    return float(np.sum(of_buckets[own]))
