"""Measure a workload: how long its parts take and when each gradient is ready.

And, on several ranks, what an iteration takes beyond its parts because ranks wait for
each other (``waiting``), and how much computation and communication slow each other
(``contention``). The medians of it all are taken in ``assembly``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np

from comm_plan.errors import InputError
from comm_plan.plans import Profile
from comm_plan.plans.parameters import model_fingerprint, trainable
from comm_plan.profiler.assembly import assemble, check_parameters, with_findings
from comm_plan.profiler.contention import contention
from comm_plan.profiler.environment import usable_device
from comm_plan.profiler.handoff import handoff_s
from comm_plan.profiler.ranks import check_same_model
from comm_plan.profiler.timings import (
    Measurable,
    PassProgress,
    Timings,
    Trial,
)
from comm_plan.profiler.waiting import Rendezvous
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
    check_parameters(workload.name, trainable(workload.model))
    ranks = LocalTransport(target) if transport is None else transport
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
        profile = assemble(
            workload.name,
            workload.batch_size,
            trial.parameters,
            of_ranks,
            lag_s=lag_s,
            meeting_s=rendezvous.alone_s(),
        )
    alone = Trial(workload, target, ranks.rank, ranks.world_size)
    profile = with_findings(profile, ranks.gather_objects(alone.look()))
    return profile.model_copy(update={"contention": contention(alone, ranks, numel)})


def _how_many(of_ranks: Sequence[Timings]) -> int:
    """Return how many iterations to measure instead, 0 if those were enough."""
    longest_s = max(float(np.mean(each.total_s)) for each in of_ranks)
    fitting = min(ITERATIONS[1], int(LONG_ENOUGH_S / longest_s))
    return fitting if fitting > ITERATIONS[0] else 0
