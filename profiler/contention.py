"""How much computation and communication slow each other while both go on.

Both may want the same cores, memory or (NCCL) multiprocessors. So the iterations run
once alone and then beside each of the three things that the communication thread does:
messages that only start up, messages that are long, and passes over memory as
compressors make them. The rates are alone over beside each other, the mean of the
ranks: of the iterations' medians, and of the means of calls beside them. Calls that
have to wait for a core take many times as long as the others; their sum counts.
"""

from __future__ import annotations

import time
from contextlib import closing

import numpy as np
import torch

from comm_plan.plans import Contention, Rates
from comm_plan.profiler.interference import AllReduce, Codec, Job, repeated
from comm_plan.profiler.timings import Trial
from comm_plan.transports.base import Transport

STARTUP_NUMEL = 64
"""Elements of a message that takes no time but to start up."""

TRANSFER_NUMEL = 2**20
"""Elements of a long message, if the model is as large."""

CODEC_NUMEL = 2**20
"""Elements of what is passed over; more than caches hold of many ranks together."""

ITERATIONS = 10
"""Iterations beside each, or more, until :data:`CALLS` calls have had the time."""

CALLS = 5
"""Calls of each alone, and at least about so many beside the iterations."""


def contention(trial: Trial, ranks: Transport, numel: int) -> Contention:
    """Return how computation and communication slow each other.

    A collective call.

    Args:
        trial: runs iterations that meet no other rank.
        ranks: the ranks; with one only there is nothing to send.
        numel: elements of the model.
    """
    codec = Codec(ranks.device, min(CODEC_NUMEL, numel))
    with closing(ranks.duplicate()) as channel:
        jobs: dict[str, Job] = {"codec": codec}
        if ranks.world_size > 1:
            transfer_numel = min(TRANSFER_NUMEL, numel)
            jobs["startup"] = AllReduce(channel, min(STARTUP_NUMEL, numel))
            jobs["transfer"] = AllReduce(channel, transfer_numel)
        ranks.barrier()
        alone_s = _compute_s(trial, 0.0)
        own = {}
        for name, job in jobs.items():
            ranks.barrier()
            own[name] = _beside(trial, job, alone_s, ranks.device)
    every_rank = ranks.gather_objects(own)
    return Contention(
        world_size=ranks.world_size,
        **{name: rates([of[name] for of in every_rank]) for name in own},
    )


def rates(measured: list[tuple[float, float]]) -> Rates:
    """Return the mean rates; nothing goes faster beside something else.

    Args:
        measured: of each rank: computation's and the channel's.
    """
    compute, channel = np.minimum(1.0, np.mean(measured, axis=0)).tolist()
    together = min(1.0, compute + channel)
    return Rates(
        compute=min(1.0, compute / together), channel=min(1.0, channel / together)
    )


def _beside(
    trial: Trial, job: Job, alone_s: float, device: torch.device
) -> tuple[float, float]:
    """Return the rates of computation and of ``job`` beside each other."""
    job_s = np.median([_seconds(job) for _ in range(CALLS)])
    with repeated(job, device) as calls:
        beside_s = _compute_s(trial, CALLS * float(job_s))
        job_beside_s = np.mean(calls) if calls else job_s
    return alone_s / beside_s, float(job_s / job_beside_s)


def _compute_s(trial: Trial, at_least_s: float) -> float:
    """Return the median seconds of forward and backward."""
    begin_s = time.perf_counter()
    seconds: list[float] = []
    while len(seconds) < ITERATIONS or time.perf_counter() - begin_s < at_least_s:
        timings = trial.run(1, 0)
        seconds += (timings.forward_s + timings.backward_s).tolist()
    return float(np.median(seconds))


def _seconds(job: Job) -> float:
    begin_s = time.perf_counter()
    job(False)
    return time.perf_counter() - begin_s
