"""Small documents by hand: profiles, networks and what they consist of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from comm_plan.plans import (
    Bucket,
    BucketTiming,
    BucketTraffic,
    CollectiveCost,
    CompressionCost,
    Curve,
    Device,
    Evaluation,
    Fit,
    IterationTimes,
    Model,
    Network,
    Plan,
    PlannedModel,
    Predicted,
    Profile,
    Round,
    RunRecord,
    Sample,
    Segment,
    TensorTiming,
    Timing,
    Traffic,
    Trial,
    Tuning,
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
                (numel, 1),
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
    """Return profile costs: kind=(fixed_s, seconds per element), one density each.

    A bucket takes half of what is fixed besides.
    """
    return {
        kind: tuple(
            CompressionCost(
                numel=n,
                density=d,
                compress_s=f + s * n,
                decompress_s=(f + s * n) / 2,
                bucket_encode_s=f / 3,
                bucket_decode_s=f / 6,
            )
            for n in (1, 1_000_000)
            for d in ((0.001, 0.1) if kind == "topk" else (1.0,))
        )
        for kind, (f, s) in kinds.items()
    }


def planned_model(profile: Profile) -> PlannedModel:
    """Return the model of ``profile`` as plans name it."""
    return PlannedModel(name=profile.model.name, fingerprint=profile.model.fingerprint)


def timing(
    *buckets: tuple[float, float, float],
    forward_s: float = 0.0,
    compute_end_s: float | None = None,
) -> Timing:
    """Return a timing of (ready, start, finish) seconds of each bucket."""
    if compute_end_s is None:
        compute_end_s = max(ready_s for ready_s, _, _ in buckets)
    return Timing(
        backward_start_s=forward_s,
        compute_end_s=compute_end_s,
        buckets=tuple(
            BucketTiming(ready_s=ready, start_s=start, finish_s=finish)
            for ready, start, finish in buckets
        ),
    )


def plan(
    profile: Profile,
    *buckets: Bucket,
    solver: str = "optimal",
    iteration_s: float = 0.05,
    baselines: dict[str, float] | None = None,
    timing: Timing | None = None,
    **changes,
) -> Plan:
    """Return a plan for ``profile``: all in one dense bucket, or in ``buckets``."""
    one = Bucket(tensors=tuple(tensor.name for tensor in profile.tensors))
    parts = {
        "solver": solver,
        "model": planned_model(profile),
        "world_size": 4,
        "backend": "gloo",
        "buckets": buckets or (one,),
        "predicted": Predicted(
            iteration_s=iteration_s,
            exposed_s=0.0,
            lower_bound_s=iteration_s / 2,
            baselines=baselines or {},
            timing=timing,
        ),
    }
    return Plan(**(parts | changes))


def run(
    plan: Plan,
    iterations_s: Sequence[float] = (0.09, 0.05, 0.06),
    *,
    warmup: int = 1,
    losses: Sequence[float | None] = (),
    accuracies: Sequence[tuple[int, float]] = (),
    sent: Sequence[tuple[int, float]] = (),
    **changes,
) -> RunRecord:
    """Return a run by ``plan``.

    Args:
        plan: what it followed.
        iterations_s: seconds of each step.
        warmup: how many of them do not count.
        losses: of each step.
        accuracies: held out, after which step.
        sent: dense and message bytes of each bucket.
        changes: other fields.
    """
    warm = sorted(iterations_s[warmup:])
    dense = sum(dense_nbytes for dense_nbytes, _ in sent)
    message = sum(message_nbytes for _, message_nbytes in sent)
    traffic = Traffic(
        buckets=tuple(
            BucketTraffic(
                tensors=len(bucket.tensors),
                kind=bucket.compressor.kind,
                collective=bucket.collective,
                dense_nbytes=dense_nbytes,
                message_nbytes=message_nbytes,
            )
            for bucket, (dense_nbytes, message_nbytes) in zip(
                plan.buckets, sent, strict=False
            )
        ),
        dense_nbytes=dense,
        message_nbytes=message,
        compression_ratio=dense / message if message else 1.0,
    )
    parts = {
        "workload": plan.model.name,
        "solver": plan.label,
        "plan_sha256": plan.sha256,
        "model_fingerprint": plan.model.fingerprint,
        "backend": plan.backend,
        "world_size": plan.world_size,
        "steps": len(iterations_s),
        "iteration": IterationTimes(
            count=len(warm),
            median_s=warm[len(warm) // 2],
            p95_s=warm[-1],
            min_s=warm[0],
        ),
        "iterations_s": tuple(iterations_s),
        "predicted_iteration_s": plan.predicted and plan.predicted.iteration_s,
        "traffic": traffic if sent else None,
        "evaluations": tuple(
            Evaluation(step=step, epoch=0, metric="accuracy", value=value)
            for step, value in accuracies
        ),
        "losses": tuple(losses),
    }
    return RunRecord(**(parts | changes))


def trial(
    name: str,
    predicted_s: float,
    measured_s: float | None = None,
    curves: Sequence[Curve] = (),
    **changes,
) -> Trial:
    """Return a trial in one round if it was measured; its plan is NAME.json."""
    rounds = ()
    if measured_s is not None:
        last = Round(iterations=20, median_s=measured_s, p95_s=1.1 * measured_s)
        rounds = (last,)
    parts = {
        "name": name,
        "plan": f"{name}.json",
        "lossless": True,
        "predicted_s": predicted_s,
        "rounds": rounds,
        "measured_s": measured_s,
        "curves": tuple(curves),
    }
    return Trial(**(parts | changes))


def tuning(profile: Profile, *trials: Trial, **changes) -> Tuning:
    """Return a tuning of ``trials``, the last of which won."""
    parts = {
        "workload": profile.model.name,
        "model": planned_model(profile),
        "backend": "gloo",
        "world_size": 4,
        "budget_s": 60.0,
        "took_s": 50.0,
        "complete": True,
        "winner": trials[-1].name,
        "advice": f"use {trials[-1].name}",
        "trials": trials,
    }
    return Tuning(**(parts | changes))
