"""What a plan says, as rows: its predicted time against others, and its buckets."""

from __future__ import annotations

from collections.abc import Iterator

from comm_plan import units
from comm_plan.plans import Bucket, CompressorSpec, Plan
from comm_plan.report.facts import Fact, emulated, local

BUCKET_HEADER = ("bucket", "tensors", "first", "last", "compressor", "collective")


def plan_rows(plan: Plan) -> list[Fact]:
    """Return the summary of a plan, its baselines from the slowest to the fastest."""
    return [*_setting(plan), *_prediction(plan)]


def bucket_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return one row per bucket, in launch order, under :data:`BUCKET_HEADER`."""
    return [_bucket(index, bucket) for index, bucket in enumerate(plan.buckets)]


def compressor_text(spec: CompressorSpec, tensors: int) -> str:
    """Return the compressor of so many ``tensors``, such as ``topk 0.1 %``."""
    densities = spec.densities(tensors)
    if not spec.sparse:
        return spec.kind
    low, high = f"{100 * min(densities):.3g} %", f"{100 * max(densities):.3g} %"
    return f"{spec.kind} {low}" if low == high else f"{spec.kind} {low} to {high}"


def _bucket(index: int, bucket: Bucket) -> tuple[str, ...]:
    return (
        str(index),
        str(len(bucket.tensors)),
        bucket.tensors[0],
        bucket.tensors[-1],
        compressor_text(bucket.compressor, len(bucket.tensors)),
        bucket.collective,
    )


def _setting(plan: Plan) -> Iterator[Fact]:
    yield "plan", f"{plan.label} for {plan.model.name}"
    yield "ranks", f"{plan.world_size} x {plan.backend}"
    yield from emulated(plan.emulated_link)
    tensors = sum(len(bucket.tensors) for bucket in plan.buckets)
    held = units.counted(tensors, "tensor")
    yield "buckets", f"{len(plan.buckets)} of {held}"
    if plan.momentum_correction:
        yield "momentum", "applied before compression"
    if plan.local_steps is not None:
        yield local(plan.local_steps)
    if plan.evidence:
        yield "accuracy", "\n".join(plan.evidence)


def _prediction(plan: Plan) -> Iterator[Fact]:
    predicted = plan.predicted
    if predicted is None:
        return
    iteration = units.about(predicted.iteration_s, predicted.error_s)
    if predicted.extrapolated_from is not None:
        measured = units.counted(predicted.extrapolated_from, "rank")
        iteration += f", extrapolated from {measured}"
    yield "iteration, predicted", iteration
    yield "exposed communication", units.seconds(predicted.exposed_s)
    if predicted.lower_bound_s:
        multiple = units.times(predicted.iteration_s / predicted.lower_bound_s)
        bound = units.seconds(predicted.lower_bound_s)
        yield "dense lower bound", f"{bound}; the plan takes {multiple} that"
    baselines = sorted(predicted.baselines.items(), key=lambda item: -item[1])
    for name, baseline_s in baselines:
        against = units.seconds(baseline_s)
        if predicted.iteration_s:
            speedup = units.times(baseline_s / predicted.iteration_s)
            against += f": {speedup} as fast"
        yield f"against {name}", against
