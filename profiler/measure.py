"""Measure a workload: how long its parts take and when each gradient is ready.

Medians over the iterations; on several ranks the slowest rank's, and what an iteration
takes beyond its parts because ranks wait for each other (``waiting``), and how much
computation and communication slow each other (``contention``). The tensors are
in the order in which their hooks ran; where that differs between iterations, in the
order of their median times. A trainable tensor that gets no gradient must still be in a
plan: it comes last, ready at the end of backward.

What cannot be said in a number is in the profile's ``environment``: ``order``,
``unused`` (tensors without a gradient) and on CUDA ``bound_by``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import accumulate

import numpy as np
import torch
from torch import nn

from comm_plan.errors import InputError
from comm_plan.plans import (
    DTYPE_NBYTES,
    Profile,
    Spread,
    TensorTiming,
)
from comm_plan.plans.parameters import dtype_name, model_fingerprint, trainable
from comm_plan.profiler.contention import contention
from comm_plan.profiler.describe import describe_model, tensor_timing
from comm_plan.profiler.environment import (
    describe_device,
    environment,
    usable_device,
)
from comm_plan.profiler.handoff import handoff_s
from comm_plan.profiler.ranks import check_same_model, order_of_ranks, slowest_of
from comm_plan.profiler.timings import (
    Measurable,
    PassProgress,
    SecondsArray,
    Timings,
    Trial,
)
from comm_plan.profiler.waiting import Rendezvous, waiting_s
from comm_plan.transports.base import Transport
from comm_plan.transports.local import LocalTransport

MIN_ITERATIONS = 20
"""Fewer give no stable medians."""

ITERATIONS = (30, 200)
"""Unless told otherwise: fewest, and most where they are short."""

LONG_ENOUGH_S = 5.0
"""Short iterations vary most, and many of them take no longer than this."""

HANDOFF_ITERATIONS = 10
"""Iterations in which gradients are handed to another thread."""

LAUNCH_BOUND = 0.95
"""The host was busy for more than this share of backward: it sets the pace."""


def measure(
    workload: Measurable,
    *,
    device: str = "cpu",
    iterations: int | None = None,
    warmup: int = 5,
    transport: Transport | None = None,
    progress: PassProgress | None = None,
) -> Profile:
    """Return the profile of ``workload``, which these iterations train.

    Args:
        workload: what to measure; its model is moved to ``device``.
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        iterations: how many to measure, 20 or more; None: 30, and of short ones as
            many more as :data:`LONG_ENOUGH_S` has room for, 200 at most.
        warmup: how many to run before.
        transport: on several ranks: every rank calls this, and all get one profile.
        progress: called with the number of iterations done and of all of a pass.

    Raises:
        InputError: too few iterations, no such device, or a model without trainable
            parameters or with a dtype that cannot be sent.
        MismatchError: the ranks have different models.
    """
    if iterations is not None and iterations < MIN_ITERATIONS:
        raise InputError(
            f"iterations is {iterations}, medians need {MIN_ITERATIONS}: raise it"
        )
    target = usable_device(device)
    _check_parameters(workload.name, trainable(workload.model))
    ranks = LocalTransport() if transport is None else transport
    check_same_model(ranks.gather_objects(model_fingerprint(workload.model)))
    numel = sum(p.numel() for p in trainable(workload.model).values())
    with closing(Rendezvous(ranks, numel)) as rendezvous:
        trial = Trial(workload, target, ranks.rank, ranks.world_size, rendezvous.meet)
        first = trial.run(iterations or ITERATIONS[0], warmup, progress)
        of_ranks = ranks.gather_objects(first)
        more = 0 if iterations else _how_many(of_ranks)
        if more:
            of_ranks = ranks.gather_objects(trial.run(more, 0, progress))
        lag_s = 0.0
        if target.type == "cpu":
            own_s = handoff_s(trial.parameters, trial.iterate, HANDOFF_ITERATIONS)
            lag_s = max(ranks.gather_objects(own_s))
        profile = _profile(
            workload, target, trial.parameters, of_ranks, rendezvous.alone_s(), lag_s
        )
    alone = Trial(workload, target, ranks.rank, ranks.world_size)
    return profile.model_copy(update={"contention": contention(alone, ranks, numel)})


def _how_many(of_ranks: Sequence[Timings]) -> int:
    """Return how many iterations to measure instead, 0 if those were enough."""
    longest_s = max(float(np.mean(each.total_s)) for each in of_ranks)
    fitting = min(ITERATIONS[1], int(LONG_ENOUGH_S / longest_s))
    return fitting if fitting > ITERATIONS[0] else 0


def _check_parameters(name: str, parameters: dict[str, nn.Parameter]) -> None:
    if not parameters:
        raise InputError(
            f"workload {name} has no trainable parameters: nothing to plan"
        )
    for key, parameter in parameters.items():
        if dtype_name(parameter) not in DTYPE_NBYTES:
            raise InputError(
                f"parameter {key} of workload {name} is {dtype_name(parameter)}: only "
                f"{', '.join(DTYPE_NBYTES)} can be planned"
            )


def _profile(
    workload: Measurable,
    device: torch.device,
    parameters: dict[str, nn.Parameter],
    of_ranks: Sequence[Timings],
    meeting_s: float,
    lag_s: float,
) -> Profile:
    timings = slowest_of(of_ranks)
    backward_s = float(np.median(timings.backward_s))
    return Profile(
        model=describe_model(workload.name, parameters),
        device=describe_device(device),
        environment=environment(device)
        | _findings(device, parameters, timings)
        | order_of_ranks(of_ranks),
        batch_size=workload.batch_size,
        forward_s=float(np.median(timings.forward_s)),
        backward_s=backward_s,
        update_s=float(np.median(timings.update_s)),
        waiting_s=waiting_s(timings, meeting_s + lag_s),
        handoff_s=lag_s,
        tensors=in_ready_order(parameters, timings, backward_s),
        iterations=len(timings.backward_s),
        forward_spread=_spread(timings.forward_s),
        backward_spread=_spread(timings.backward_s),
    )


def in_ready_order(
    parameters: dict[str, nn.Parameter], timings: Timings, backward_s: float
) -> tuple[TensorTiming, ...]:
    """Return the tensors in ready order, those without a gradient last."""
    columns = timings.ready_s.T
    median_s = {
        index: float(np.nanmedian(column))
        for index, column in enumerate(columns)
        if not np.isnan(column).all()
    }
    order = list(dict.fromkeys(timings.orders[0]))
    if len(set(timings.orders)) > 1:
        order = sorted(median_s, key=lambda index: median_s[index])
    unused = [index for index in range(len(columns)) if index not in median_s]
    times = [median_s[index] for index in order] + [backward_s] * len(unused)
    named = list(parameters.items())
    return tuple(
        tensor_timing(*named[index], ready_s=ready_s)
        for index, ready_s in zip(order + unused, accumulate(times, max), strict=True)
    )


def _findings(
    device: torch.device, parameters: dict[str, nn.Parameter], timings: Timings
) -> dict[str, str]:
    iterations = len(timings.orders)
    odd = sum(order != timings.orders[0] for order in timings.orders)
    order = f"the same in all {iterations} iterations"
    if odd:
        order = f"by median: it differs in {odd} of {iterations} iterations"
    findings = {"order": order}
    columns = zip(parameters, timings.ready_s.T, strict=True)
    unused = [name for name, column in columns if np.isnan(column).all()]
    if unused:
        findings["unused"] = ", ".join(unused)
    if device.type == "cuda":
        findings["bound_by"] = bound_by(timings)
    return findings


def bound_by(timings: Timings) -> str:
    """Return who sets the pace of backward: ``host`` (launches) or ``device``."""
    host_s = np.median(timings.host_backward_s)
    busy = host_s > LAUNCH_BOUND * np.median(timings.backward_s)
    return "host" if busy else "device"


def _spread(times_s: SecondsArray) -> Spread:
    p05_s, p95_s = np.percentile(times_s, [5, 95])
    return Spread(p05_s=float(p05_s), p95_s=float(p95_s))
