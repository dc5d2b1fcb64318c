"""What a run record says, as rows: time against prediction, traffic, quality."""

from __future__ import annotations

from collections.abc import Iterator

from comm_plan import units
from comm_plan.plans import BucketTraffic, Following, RunRecord, Traffic
from comm_plan.report.facts import Fact, emulated, local


def run_rows(record: RunRecord) -> list[Fact]:
    """Return the summary of a run; what was not recorded has no row."""
    return [*_setting(record), *_times(record), *_traffic(record), *_quality(record)]


def prediction_error(record: RunRecord) -> float | None:
    """Return ``predicted / measured - 1`` for the median iteration, if predicted.

    Positive: the run was faster than predicted.
    """
    if record.predicted_iteration_s is None or record.iteration.median_s == 0:
        return None
    return record.predicted_iteration_s / record.iteration.median_s - 1


def computation_off(record: RunRecord) -> float | None:
    """Return by which share computation took longer than predicted, if predicted.

    Of rank 0: forward, backward and all compression.
    """
    predicted, measured = record.predicted_timing, record.timing
    if predicted is None or measured is None or predicted.compute_end_s == 0:
        return None
    return measured.compute_end_s / predicted.compute_end_s - 1


def bucket_traffic_rows(record: RunRecord) -> list[tuple[str, ...]]:
    """Return one row per bucket under :data:`BUCKET_TRAFFIC_HEADER`."""
    buckets = record.traffic.buckets if record.traffic else ()
    return [_bucket_traffic(index, bucket) for index, bucket in enumerate(buckets)]


BUCKET_TRAFFIC_HEADER = (
    "bucket", "tensors", "compressor", "collective", "dense", "message", "ratio",
)  # fmt: skip


def _bucket_traffic(index: int, bucket: BucketTraffic) -> tuple[str, ...]:
    return (
        str(index),
        str(bucket.tensors),
        bucket.kind,
        bucket.collective,
        units.nbytes(bucket.dense_nbytes),
        units.nbytes(bucket.message_nbytes),
        units.times(bucket.dense_nbytes / bucket.message_nbytes)
        if bucket.message_nbytes
        else "-",
    )


def _setting(record: RunRecord) -> Iterator[Fact]:
    yield "workload", record.workload
    ranks = f"{record.world_size} x {record.backend}"
    if record.plan_sha256 is None:
        yield "gradients", f"averaged by PyTorch DDP on {ranks}"
    else:
        yield "plan", f"{record.solver} for {ranks}"
    for replan in record.replans:
        before, after = map(units.seconds, (replan.corrected_s, replan.predicted_s))
        yield f"new plan, step {replan.step}", f"{before} to {after}: {replan.reason}"
    if record.following is not None:
        yield "adapting", _followed(record.following)
    yield from emulated(record.emulated_link)
    steps = str(record.steps)
    if record.skipped_steps:
        steps += _skipped(record)
    yield "steps", steps
    if record.local_steps is not None:
        yield local(record.local_steps)
    if record.micro_batches > 1:
        yield "second moments", f"from {record.micro_batches} micro-batches"


def _skipped(record: RunRecord) -> str:
    if record.local_steps is None:
        return f", {record.skipped_steps} of them skipped"
    return f"; {units.counted(record.skipped_steps, 'round')} undone"


def _followed(following: Following) -> str:
    times = units.counted(following.windows, "time")
    looked = f"compared {times} with what was expected"
    if not following.kept:
        return looked
    kept = units.counted(following.kept, "time")
    return f"{looked}; {kept} a change lasted, and the plan was the best still"


def _times(record: RunRecord) -> Iterator[Fact]:
    measured = record.iteration
    if measured.count == 0:
        return
    yield "iteration, median", units.seconds(measured.median_s)
    spread = f"{units.seconds(measured.min_s)} to {units.seconds(measured.p95_s)}"
    rounds = record.local_steps is not None
    count = units.counted(measured.count, "round" if rounds else "iteration")
    yield "iteration, min to p95", f"{spread}, {count}"
    error = prediction_error(record)
    if record.predicted_iteration_s is not None and error is not None:
        about = record.predicted_iteration_s, record.predicted_error_s
        predicted = units.about(*about)
        side = "below" if error < 0 else "above"
        yield (
            "iteration, predicted",
            f"{predicted}, {units.percent(abs(error))} {side} the measured",
        )
    off = computation_off(record)
    if record.timing is not None and off is not None:
        side = "longer" if off > 0 else "shorter"
        yield (
            f"computation of rank 0{', a round' if rounds else ''}",
            f"{units.seconds(record.timing.compute_end_s)}, "
            f"{units.percent(abs(off))} {side} than predicted",
        )


def _traffic(record: RunRecord) -> Iterator[Fact]:
    if record.traffic is not None:
        yield "messages, per step", _messages(record.traffic)
    if record.interface_tx_nbytes is not None:
        yield "network interfaces, per step", units.nbytes(record.interface_tx_nbytes)


def _messages(traffic: Traffic) -> str:
    sent = units.nbytes(traffic.message_nbytes)
    dense = units.nbytes(traffic.dense_nbytes)
    if traffic.message_nbytes == traffic.dense_nbytes:
        return f"{sent}, the gradients as they are"
    if not traffic.message_nbytes:
        return f"{sent} for {dense} of gradients"
    ratio = units.times(traffic.compression_ratio)
    return f"{sent} for {dense} of gradients: {ratio} less"


def _quality(record: RunRecord) -> Iterator[Fact]:
    if record.final_loss is not None:
        yield "training loss, last", f"{record.final_loss:.4g}"
    last = {evaluation.metric: evaluation for evaluation in record.evaluations}
    for metric, evaluation in last.items():
        value = f"{evaluation.value:.4g} after step {evaluation.step}"
        yield f"{metric}, held out", value
