"""The order in which gradients are sent: as they get ready, those of a dtype together.

A bucket has one dtype. Where dtypes alternate, as bfloat16 weights and float32 norms
do, a bucket for every stretch of one would be a bucket for every tensor. So buckets of
several dtypes are filled beside each other, as PyTorch's ``DistributedDataParallel``
fills them: a bucket takes its place once it is full, those that never are take theirs
at the end. What waits for its place is sent later than it is ready.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby

from comm_plan.planner.problem import DDP_CAPS
from comm_plan.plans.profile import TensorTiming


def sending_order(tensors: Sequence[TensorTiming]) -> tuple[TensorTiming, ...]:
    """Return ``tensors``, in ready order, as they are sent.

    A sparse gradient is sent by itself, between those before it and those after it.
    """
    ordered: list[TensorTiming] = []
    for is_sparse, stretch in groupby(tensors, key=lambda each: each.rows is not None):
        members = list(stretch)
        ordered += members if is_sparse else _together(members)
    return tuple(ordered)


def _together(tensors: Sequence[TensorTiming]) -> Iterator[TensorTiming]:
    runs = [dtype for dtype, _ in groupby(tensors, key=lambda each: each.dtype)]
    if len(runs) == len(set(runs)):
        yield from tensors
        return
    filled: dict[str, list[tuple[int, TensorTiming]]] = defaultdict(list)
    held: dict[str, int] = defaultdict(int)
    closed: dict[str, int] = defaultdict(int)
    for number, tensor in enumerate(tensors):
        bucket = filled[tensor.dtype]
        bucket.append((number, tensor))
        held[tensor.dtype] += tensor.nbytes
        cap = DDP_CAPS[min(closed[tensor.dtype], len(DDP_CAPS) - 1)]
        if held[tensor.dtype] >= cap:
            yield from (each for _, each in bucket)
            bucket.clear()
            held[tensor.dtype] = 0
            closed[tensor.dtype] += 1
    for bucket in sorted(filter(None, filled.values()), key=lambda each: each[-1][0]):
        yield from (each for _, each in bucket)
