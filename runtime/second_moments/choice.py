"""Which second moments a training takes: exact ones, or from how many micro-batches.

The choice is a number of micro-batches; one is the whole batch, with exact moments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from comm_plan.errors import InputError, MismatchError
from comm_plan.plans import Plan
from comm_plan.plans.profile import SecondMoments
from comm_plan.runtime import randomness
from comm_plan.runtime.second_moments.batch import batch_size, cut
from comm_plan.runtime.second_moments.micro_batches import MicroBatchSecondMoments
from comm_plan.runtime.second_moments.survey import Survey
from comm_plan.transports.base import Transport
from comm_plan.workloads.base import Loss, Workload
from comm_plan.workloads.checks import copied

EXACT = 1
"""Micro-batches of a training with exact second moments."""

PARTS = (4, 3, 2)
"""Micro-batches unless told otherwise: the first that leaves each a few samples."""

FEWEST_SAMPLES = 2
"""Of a micro-batch unless told otherwise: batch norm wants more than one."""


def parts_of(samples: int) -> int | None:
    """Return how many micro-batches ``samples`` are cut into; None: they cannot be."""
    fitting = (
        parts
        for parts in PARTS
        if samples % parts == 0 and samples >= parts * FEWEST_SAMPLES
    )
    return next(fitting, None)


def survey(model: nn.Module, loss: Loss, batch: Any) -> SecondMoments:
    """Run one forward and backward, and return how second moments can be had."""
    watched = Survey(model)
    try:
        loss(model, batch).backward()
    finally:
        watched.close()
    return SecondMoments(objection=watched.objection, micro_batches=_parts_of(batch))


def common(of_ranks: Sequence[SecondMoments]) -> SecondMoments:
    """Return what all ranks can have."""
    objections = (found.objection for found in of_ranks)
    parts = [found.micro_batches for found in of_ranks]
    return SecondMoments(
        objection=next((o for o in objections if o is not None), None),
        micro_batches=parts[0] if len(set(parts)) == 1 else None,
    )


def needed(plan: Plan) -> bool:
    """Return whether a bucket of ``plan`` is compressed by second moments."""
    return any(bucket.compressor.needs_second_moments for bucket in plan.buckets)


def micro_batches(
    workload: Workload,
    plan: Plan,
    transport: Transport,
    asked: int | None = None,
    seed: int = 0,
    tell: Callable[[str], object] = lambda text: None,
) -> int:
    """Return into how many micro-batches to cut each batch; a collective call.

    Args:
        workload: what is trained; its model is on the transport's device.
        plan: what by.
        transport: the ranks.
        asked: what the user wants; None: exact moments where they can be had.
        seed: of the data.
        tell: is told on rank 0 why they are not exact.

    Raises:
        InputError: something is asked for, but the plan needs no second moments; or
            nothing is, and the model cannot be copied.
        MismatchError: neither exact moments nor micro-batches can be had.
    """
    if not needed(plan):
        if asked is not None:
            raise InputError(
                "second moments are asked for, but the plan compresses nothing by "
                "them: leave --second-moments out"
            )
        return EXACT
    if asked is not None:
        return asked
    with randomness.kept():
        batches = workload.batches(transport.rank, transport.world_size, 0, seed)
        model = copied(workload.model, "say --second-moments exact or micro-batches:N")
        own = survey(model, workload.loss, next(iter(batches)))
    found = common(transport.gather_objects(own))
    parts = chosen(found)
    if parts is None:
        raise MismatchError(
            f"{found.objection}, and a batch cannot be cut into micro-batches, so "
            "there are no second moments: use another compressor or batch size"
        )
    if parts != EXACT and transport.rank == 0:
        tell(f"second moments from {parts} micro-batches: {found.objection}")
    return parts


def chosen(found: SecondMoments) -> int | None:
    """Return into how many micro-batches to cut a batch; None: nothing serves."""
    return EXACT if found.objection is None else found.micro_batches


def estimator(model: nn.Module, parts: int) -> MicroBatchSecondMoments | None:
    """Return what estimates from ``parts`` micro-batches; None: exact moments serve."""
    return None if parts == EXACT else MicroBatchSecondMoments(model, parts)


def _parts_of(batch: Any) -> int | None:
    try:
        parts = parts_of(batch_size(batch))
        if parts is not None:
            cut(batch, parts)
    except MismatchError:
        return None
    return parts
