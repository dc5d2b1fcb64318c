"""Bytes of buckets: as a run measured them, else as their compressors' specs say."""

from __future__ import annotations

from dataclasses import dataclass, replace

from comm_plan import units
from comm_plan.plans import Bucket, Plan, Profile, RunRecord, TensorTiming
from comm_plan.plans.compression.rows import Rows
from comm_plan.report.plan import compressor_text


@dataclass(frozen=True)
class BucketSize:
    """What a bucket weighs on each rank, per step or, planned, per exchange.

    Attributes:
        dense: bytes of its gradients.
        message: bytes that a rank hands to the transport.
    """

    dense: int
    message: float

    @property
    def ratio(self) -> float | None:
        """How much less is sent; None where nothing was."""
        return self.dense / self.message if self.message else None


def run_sizes(record: RunRecord) -> tuple[BucketSize, ...]:
    """Return what a run measured of each bucket; empty if it did not."""
    buckets = record.traffic.buckets if record.traffic else ()
    return tuple(BucketSize(b.dense_nbytes, b.message_nbytes) for b in buckets)


def plan_sizes(plan: Plan, profile: Profile | None) -> tuple[BucketSize, ...]:
    """Return what each bucket of a plan weighs; empty without the tensors' sizes.

    One rank sends nothing.
    """
    if profile is None:
        return ()
    tensors = {tensor.name: tensor for tensor in profile.tensors}
    sizes = tuple(_planned(bucket, tensors) for bucket in plan.buckets)
    if plan.world_size == 1:
        return tuple(replace(size, message=0) for size in sizes)
    return sizes


def step_sizes(plan: Plan, profile: Profile | None) -> tuple[BucketSize, ...]:
    """Return what :func:`plan_sizes` does, per step: of local steps most send none."""
    return tuple(
        replace(size, message=size.message / plan.round_steps)
        for size in plan_sizes(plan, profile)
    )


def _planned(bucket: Bucket, tensors: dict[str, TensorTiming]) -> BucketSize:
    held = [tensors[name] for name in bucket.tensors]
    dense = sum(tensor.nbytes for tensor in held)
    rows = [tensor.rows_nbytes for tensor in held if tensor.rows is not None]
    if rows and isinstance(bucket.compressor, Rows):
        return BucketSize(dense, sum(rows))
    if bucket.compressor.lossless:
        return BucketSize(dense, dense)
    shapes = [tensor.shape for tensor in held]
    message = bucket.compressor.planned_nbytes(shapes, bucket.collective)
    return BucketSize(dense, message)


def bucket_text(bucket: Bucket, size: BucketSize | None) -> str:
    """Return in a few words what a bucket holds and how it travels."""
    tensors = len(bucket.tensors)
    held = units.counted(tensors, "tensor")
    how = f"{compressor_text(bucket.compressor, tensors)} by {bucket.collective}"
    if size is None:
        return f"{held}; {how}"
    return f"{held}, {units.nbytes(size.dense)}; {how}, {units.nbytes(size.message)}"
