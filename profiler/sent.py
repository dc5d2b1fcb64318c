"""How much is sent of the model's own gradients where the data decides it.

VGC, Strom and the hybrid send an element when its residual says so: how many they send
depends on the model, its data and the batch size, and no default knows it. So the
workload's own iterations run under an engine of one rank, by the method's default
options, and the gradients that are not 0 afterwards are counted: those were sent. That
depends on the rank's own gradients alone, not on how many ranks there are. As all wait
for the longest message, the rank counts that sends most in an iteration. Residuals
begin empty, so the first half of the iterations does not count. Density falls and rises
as training goes on: what is seen here is that of its beginning.

How long that keeps the communication thread, where the ranks meet after each backward
as in training, over what the method's costs say of so many elements, is a factor on
those costs: they are measured with thresholds that fit normal gradients.

Each method begins from the same parameters, which are the model's again afterwards.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from comm_plan.compressors.base import VELOCITY
from comm_plan.compressors.words import MAX_NUMEL
from comm_plan.plans import CompressionCost, Plan, Profile
from comm_plan.plans.compression import spec_class
from comm_plan.plans.compression.words import Words
from comm_plan.plans.profile import Sent
from comm_plan.profiler.compression import coded_by_default
from comm_plan.profiler.one_rank import busy_s, plan_by, taken
from comm_plan.profiler.timings import Measurable, PassProgress
from comm_plan.profiler.waiting import Rendezvous
from comm_plan.profiler.whole_model import at_density, codec_in_all, times_as_long
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.iteration import iterate
from comm_plan.runtime.momentum import can_be_corrected
from comm_plan.runtime.restored import restored
from comm_plan.runtime.second_moments.choice import EXACT, chosen, estimator
from comm_plan.transports.base import Transport
from comm_plan.transports.local import LocalTransport
from comm_plan.workloads.base import endless

ITERATIONS = (10, 40)
"""Of each method: fewest, and most where they are short."""

SECONDS = 1.0
"""So long they take about, where they are short."""

LEAST = 1e-9
"""A method that sends nothing is not expected never to."""

Watched = tuple[float, float]
"""The share of the elements that is sent, and the thread's seconds; NaN: neither."""


def with_sent(
    workload: Measurable,
    profile: Profile,
    kinds: Sequence[str],
    ranks: Transport,
    progress: PassProgress | None = None,
    *,
    find_unused_parameters: bool = False,
) -> Profile:
    """Return ``profile`` with what the data lets ``kinds`` send; a collective call.

    And with their costs as long as it takes.

    Args:
        workload: what was profiled, on the transport's device.
        profile: of it.
        kinds: of compressors; others than those are left out, and what cannot be had.
        ranks: the ranks, each of which sees gradients of its own batches.
        progress: called with the number of methods done and of all.
        find_unused_parameters: as it will be trained.
    """
    moments = profile.second_moments
    parts = None if moments is None else chosen(moments)
    specs = [
        spec.example()
        for spec in map(spec_class, kinds)
        if issubclass(spec, Words)
        and 0 < sum(tensor.numel for tensor in taken(profile, spec)) <= MAX_NUMEL
        and (parts is not None or not spec.needs_second_moments)
    ]
    if not specs:
        return profile
    optimizer = workload.optimizer(workload.model.parameters())
    corrections = (False, True) if can_be_corrected(optimizer) else (False,)
    watching = _Watching(workload, ranks, find_unused_parameters)
    found = {}
    costs = dict(profile.compression)
    for done, spec in enumerate(specs, 1):
        cut = parts if parts is not None and spec.needs_second_moments else EXACT
        plan = plan_by(profile, spec)
        seen = [
            watching.seen(
                plan.model_copy(update={"momentum_correction": corrected}), spec, cut
            )
            for corrected in corrections
        ]
        densities = [density for density, _ in seen]
        if not math.isnan(densities[0]):
            found[spec.kind] = _sent(*densities)
            if spec.kind in costs:
                numels = [tensor.numel for tensor in taken(profile, type(spec))]
                costs[spec.kind] = _as_seen(costs[spec.kind], spec.kind, numels, seen)
        if progress is not None:
            progress(done, len(specs))
    return profile.model_copy(update={"sent": found, "compression": costs})


def _sent(density: float, corrected: float | None = None) -> Sent:
    """Return both; NaN: the method leaves momentum to the optimizer."""
    if corrected is not None and math.isnan(corrected):
        corrected = density
    return Sent(density=density, corrected=corrected)


def _as_seen(
    costs: Sequence[CompressionCost],
    kind: str,
    numels: Sequence[int],
    seen: Sequence[Watched],
) -> tuple[CompressionCost, ...]:
    """Return ``costs``, so many times as long as what was seen.

    Args:
        costs: of ``kind``.
        kind: the method.
        numels: of all tensors that it takes.
        seen: without momentum correction, and perhaps with it.
    """
    coded = coded_by_default(kind, LocalTransport.world_size)
    densities = sorted({cost.density for cost in costs})

    thread_s = told_s = 0.0
    for corrected, (density, seconds) in enumerate(seen):
        if not math.isnan(density):
            at = [
                codec_in_all(
                    numels,
                    at_density(costs, one),
                    coded,
                    momentum_correction=bool(corrected),
                )
                for one in densities
            ]
            thread_s += seconds
            told_s += float(np.interp(math.log(density), np.log(densities), at))
    longer = times_as_long(thread_s, told_s)
    return tuple(cost.longer(coding=longer) for cost in costs)


@dataclass(frozen=True)
class _Watching:
    """The iterations, under one engine after the other.

    Attributes:
        workload: which.
        ranks: all of them; this one's batches are taken.
        find_unused_parameters: parameters may get no gradient.
    """

    workload: Measurable
    ranks: Transport
    find_unused_parameters: bool

    def seen(self, plan: Plan, spec: Words, parts: int) -> Watched:
        """Return what is seen of ``spec`` in ``plan``; a collective call.

        NaN: no step had finite gradients, or the plan corrects momentum and the method
        leaves it to the optimizer.

        Args:
            plan: its buckets are compressed by ``spec``, or not at all.
            spec: the method.
            parts: micro-batches of a batch.
        """
        model, ranks = self.workload.model, self.ranks
        batches = endless(self.workload.batches, ranks.rank, ranks.world_size)
        meet = Rendezvous(ranks, model).meet
        rows: list[Watched] = []
        fewest, most = ITERATIONS
        with ExitStack() as entered:
            entered.enter_context(restored(model))
            optimizer = self.workload.optimizer(model.parameters())
            engine = Engine(
                model,
                plan,
                LocalTransport(ranks.device),
                on_nonfinite="skip",
                find_unused_parameters=self.find_unused_parameters,
                second_moments=estimator(model, parts),
                optimizer=optimizer,
            )
            entered.enter_context(engine)
            (bucket,) = (b for b in engine.buckets if b.planned.compressor == spec)
            if plan.momentum_correction and VELOCITY not in bucket.compressor.state:
                return math.nan, math.nan

            def count() -> None:  # before the optimizer changes gradients
                share, seconds = math.nan, math.nan
                if not engine.last_step_skipped:
                    share = _share_sent(bucket.parameters)
                    seconds = busy_s(engine, spec.kind)
                rows.append((share, seconds))

            engine.between_steps(count)
            until_s = time.monotonic() + SECONDS
            for done in range(most):
                late = done >= fewest and time.monotonic() > until_s
                if ranks.broadcast_object(late):
                    break
                iterate(
                    self.workload.loss,
                    model,
                    optimizer,
                    next(batches),
                    micro_batches=parts,
                    no_sync=engine.no_sync,
                    meet=meet,
                )
        return _slowest(np.array(ranks.gather_objects(rows[len(rows) // 2 :])))


def _slowest(seen: NDArray[np.float64]) -> Watched:
    """Return the mean share and the median seconds of the rank that has most.

    Args:
        seen: [ranks, steps, 2] share and seconds; NaN: not finite on this rank.
    """
    most = np.nan_to_num(seen, nan=-np.inf).max(axis=0)
    finite = most[np.isfinite(most).all(axis=1)]
    if not len(finite):
        return math.nan, math.nan
    shares, seconds = finite.T
    return max(LEAST, float(shares.mean())), float(np.median(seconds))


def _share_sent(parameters: Sequence[nn.Parameter]) -> float:
    """Return the share of the elements whose gradient is not 0."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    sent = sum(int(gradient.count_nonzero()) for gradient in gradients)
    return sent / sum(parameter.numel() for parameter in parameters)
