"""How well matrices of low rank approximate the gradients: what PowerSGD leaves out.

What ranks exchange is the mean of their gradients, which is nearer to a low rank than
each of them: noise has all ranks. So every rank takes the gradient of some batches of
its own together, for which nothing has to be sent. The errors are those of the best
approximations, by the largest singular values, which PowerSGD nears step by step; means
over some such gradients of every rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from comm_plan.arrays import FloatArray
from comm_plan.plans import Profile
from comm_plan.plans.compression import PowerSgd, matrix_of
from comm_plan.plans.compression.powersgd import RANKS
from comm_plan.plans.parameters import trainable
from comm_plan.plans.profile import RankError
from comm_plan.profiler.timings import Measurable, PassProgress
from comm_plan.transports.base import Transport
from comm_plan.workloads.base import endless

GRADIENTS = 3
"""Of each rank."""

BATCHES = 4
"""Of each of them."""

MARGIN = 4
"""Singular values that are looked for beyond those that are wanted."""

POWER_ITERATIONS = 4
"""Of the search for them."""


def with_low_rank(
    workload: Measurable,
    profile: Profile,
    ranks: Transport,
    progress: PassProgress | None = None,
) -> Profile:
    """Return ``profile`` with the errors of low ranks; a collective call.

    Of the matrices that PowerSGD takes and that have finite gradients. The model's
    parameters stay as they are.

    Args:
        workload: what was profiled, on the transport's device.
        profile: of it.
        ranks: the ranks.
        progress: called with the number of gradients done and of all.
    """
    taken = [
        tensor.name
        for tensor in profile.tensors
        if tensor.dtype in PowerSgd.dtypes
        and tensor.rows is None
        and matrix_of(tensor.shape, RANKS[0])
    ]
    if not taken:
        return profile
    parameters = trainable(workload.model)
    batches = endless(workload.batches, ranks.rank, ranks.world_size)
    own: dict[str, list[FloatArray]] = {name: [] for name in taken}
    for done in range(1, GRADIENTS + 1):
        workload.model.zero_grad()
        for _ in range(BATCHES):
            workload.loss(workload.model, next(batches)).backward()
        for name in taken:
            gradient = parameters[name].grad
            if gradient is not None:
                own[name].append(squared_errors(gradient / BATCHES))
        if progress is not None:
            progress(done, GRADIENTS)
    workload.model.zero_grad()
    of_ranks = ranks.gather_objects(own)

    def errors(name: str) -> tuple[RankError, ...] | None:
        return _mean([each for rank in of_ranks for each in rank.get(name, [])])

    tensors = tuple(
        tensor.model_copy(update={"low_rank": errors(tensor.name)})
        for tensor in profile.tensors
    )
    return profile.model_copy(update={"tensors": tensors})


def squared_errors(gradient: torch.Tensor) -> FloatArray:
    """Return the squared norm of what each of :data:`RANKS` leaves out, [R].

    NaN, if the gradient is not finite.

    Args:
        gradient: any shape of two dimensions or more, as PowerSGD sees it.
    """
    matrix = gradient.detach().float().flatten(1)
    if not matrix.isfinite().all():
        return np.full(len(RANKS), np.nan)
    wanted = min(max(RANKS) + MARGIN, *matrix.shape)
    _, values, _ = torch.svd_lowrank(matrix, q=wanted, niter=POWER_ITERATIONS)
    explained = values.double().square().cumsum(0).cpu().numpy()
    whole = float(matrix.double().square().sum())
    upto = np.minimum(RANKS, len(explained)) - 1
    return np.asarray(np.maximum(0.0, whole - explained[upto]), dtype=np.float64)


def _mean(found: Sequence[FloatArray]) -> tuple[RankError, ...] | None:
    """Return the mean errors, if there are any and all are finite."""
    if not found:
        return None
    errors = np.mean(found, axis=0)
    if not np.isfinite(errors).all():
        return None
    return tuple(
        RankError(rank=rank, squared_error=error)
        for rank, error in zip(RANKS, errors.tolist(), strict=True)
    )
