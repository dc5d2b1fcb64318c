"""What compressors cost within the training: their costs, corrected in place.

Beside a model a compressor finds its residuals cold, for all of the model has passed
through the caches since it touched them, and it leaves the caches cold for the rest of
backward and the next forward. Buckets that are measured on their own show neither.

So the workload's own iterations run under an engine of one rank, in which one bucket
holds all gradients that a method takes and nothing travels, in turn with iterations in
which it rests, few of each kind at a time, as a machine is now faster and now slower
for parts of a second. The ranks meet at the end of each backward, as in training: those
that share a host pass over its memory at the same time, and wait for each other. As
``train`` and ``tune`` do, the engine looks sums through for inf and NaN, and hands out
parts of buckets as gradients. Whole iterations are compared: a rank that is done sooner
waits for the others, so where its own backward ends says little, and scatters more.

Each method gets two factors, sums being over the tensors that it takes::

    compression = (longer_s - exposed_s) / sum(compress_s)
    coding      = thread_s / sum(encode_s + decompress_s)

``longer_s``: what iterations take longer with the engine at work, the update included,
which finds gradients where the engine has left them. ``exposed_s``: what the
communication thread adds after backward. ``thread_s``: what that thread takes.

- What methods take longer in place than on their own is much the same for all, and
  scatters as much from turn to turn as from method to method: it is drawn together
  (:mod:`~comm_plan.profiler.shrinkage`).
- How costs grow with size stays as measured.
- They are seen at one density. At others they grow by as many seconds, not by the same
  factor, for however little is sent, the same memory is passed over; what is faster in
  place is so by the factor.
- Momentum correction passes over states as large as the model, whatever is compressed,
  and spares the optimizer its own momentum, also while the engine rests. What
  iterations take longer with it, less by how much that shortens updates, in the mean of
  all methods, is shared out by elements.
- Gradients that a method does not take, sparse ones and those of other dtypes, travel
  in buckets of their own. Where there are some, what iterations take longer with them
  alone is taken off, and of the thread's time only that of the method's bucket counts.
- Methods whose work depends on the values of gradients are left as they are: what they
  take of the thread is seen where they send as much as of the model's own (``sent``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from torch import nn

from comm_plan.arrays import FloatArray
from comm_plan.plans import (
    Bucket,
    CompressionCost,
    Plan,
    PlannedModel,
    Profile,
)
from comm_plan.plans.compression import Spec, spec_class
from comm_plan.plans.parameters import model_fingerprint, trainable
from comm_plan.profiler.compression import coded_by_default
from comm_plan.profiler.one_rank import busy_s, plan_by, taken
from comm_plan.profiler.shrinkage import medians_drawn_together
from comm_plan.profiler.timings import Measurable, PassProgress, Trial
from comm_plan.profiler.turns import TURNS, in_turns
from comm_plan.profiler.waiting import Rendezvous
from comm_plan.profiler.whole_model import (
    at_density,
    codec_in_all,
    in_all,
    times_as_long,
)
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.momentum import can_be_corrected
from comm_plan.transports.base import Transport
from comm_plan.transports.local import LocalTransport

Costs = dict[str, tuple[CompressionCost, ...]]

Plans = Mapping[tuple[str, bool], Plan]
"""By method, and whether momentum is corrected."""

Seen = tuple[float, float]
"""By one plan: how much longer iterations are, but for what the communication thread
adds after backward, and how long that thread works. In seconds."""

WORKING = 2
"""Blocks of iterations in which an engine works, each between two in which it rests."""

BLOCK = (2, 24)
"""Iterations of one kind after one another: fewest, and most where they are short. Of
short ones medians are taken of all but the first quarter, which finds the caches as
those of another kind left them, and a thread that has just begun."""

BLOCK_S = 0.06
"""Short iterations go on for so long."""


def in_place(
    workload: Measurable,
    profile: Profile,
    transport: Transport,
    progress: PassProgress | None = None,
    *,
    find_unused_parameters: bool = False,
) -> Costs:
    """Return the ``compression`` of ``profile`` as it is within the training.

    A collective call; the iterations train the model.

    Args:
        workload: what was profiled.
        profile: with the costs of compressors on their own.
        transport: the ranks, which all compress at once.
        progress: called with the number of turns done and of all.
        find_unused_parameters: as it will be trained; gradients are copied then.

    Raises:
        RunError: a parameter got no gradient without ``find_unused_parameters``.
    """
    costs = dict(profile.compression)
    middles = {
        kind: _middle(costs[kind])
        for kind in costs
        if _works_alike_on_all(spec_class(kind)) and taken(profile, spec_class(kind))
    }
    optimizer = workload.optimizer(workload.model.parameters())
    plans = _plans(profile, middles, can_be_corrected(optimizer))
    if not plans:
        return costs
    own = _seen(workload, plans, transport, progress, find_unused_parameters)
    turns = np.mean(transport.gather_objects(own), axis=0)
    later_s, thread_s = turns[:, :, 0], np.median(turns[:, :, 1], axis=0)
    place = {plan: number for number, plan in enumerate(plans)}
    numels = {
        kind: [tensor.numel for tensor in taken(profile, spec_class(kind))]
        for kind in middles
    }
    alone = {kind: _alone(kind, numels[kind], middles[kind]) for kind in middles}
    alone_s = np.array([compress_s for compress_s, _ in alone.values()])
    first = [place[kind, False] for kind in middles]
    delays_s = alone_s + medians_drawn_together(later_s[:, first] - alone_s)
    momentum_s = _momentum_s(np.median(later_s, axis=0), place, numels)
    for (kind, middle), delay_s in zip(middles.items(), delays_s, strict=True):
        compress_s, codec_s = alone[kind]
        costs[kind] = _corrected(
            costs[kind],
            middle,
            times_as_long(float(delay_s), compress_s),
            times_as_long(float(thread_s[place[kind, False]]), codec_s),
            momentum_s if (kind, True) in place else math.nan,
        )
    return costs


def _alone(kind: str, numels: Sequence[int], costs: Sequence[CompressionCost]) -> Seen:
    """Return what a method takes on its own, of backward and of the thread.

    Args:
        kind: the method.
        numels: of all tensors that it takes.
        costs: of it at one density, by size.
    """
    coded = coded_by_default(kind, LocalTransport.world_size)
    return (
        in_all(numels, costs, lambda cost: cost.compress_s),
        codec_in_all(numels, costs, coded),
    )


def _momentum_s(
    later_s: FloatArray,
    place: Mapping[tuple[str, bool], int],
    numels: Mapping[str, Sequence[int]],
) -> float:
    """Return by how many seconds an element momentum correction delays an iteration.

    In the mean of the methods, as it is the same pass for all; NaN: none corrects it.

    Args:
        later_s: by how much each plan delays one.
        place: of each plan in it.
        numels: of the tensors that each method takes.
    """
    each = [
        (later_s[place[kind, True]] - later_s[place[kind, False]]) / sum(numels[kind])
        for kind, corrected in place
        if corrected
    ]
    return max(0.0, float(np.mean(each))) if each else math.nan


def _works_alike_on_all(spec: type[Spec]) -> bool:
    """Return whether the work depends on sizes and densities alone."""
    return not (spec.variable_length or spec.needs_second_moments)


def _middle(costs: Sequence[CompressionCost]) -> list[CompressionCost]:
    """Return those of the density in the middle, by size."""
    densities = sorted({cost.density for cost in costs})
    wanted = densities[len(densities) // 2]
    return at_density(costs, wanted)


def _plans(
    profile: Profile,
    costs: Mapping[str, Sequence[CompressionCost]],
    corrected: bool,
) -> Plans:
    """Return a plan for each method, without momentum correction and with it.

    Args:
        profile: of the model.
        costs: of each method at one density.
        corrected: with it too, for the methods it matters to.
    """
    plans = {}
    for kind, middle in costs.items():
        plan = plan_by(profile, spec_class(kind).at_density(middle[0].density))
        plans[kind, False] = plan
        if corrected and any(cost.momentum_s for cost in middle):
            momentum = {"momentum_correction": True}
            plans[kind, True] = plan.model_copy(update=momentum)
    return plans


def _seen(
    workload: Measurable,
    plans: Plans,
    ranks: Transport,
    progress: PassProgress | None,
    find_unused_parameters: bool,
) -> list[list[Seen]]:
    """Return what is seen in each turn by each plan."""
    trial = Trial(workload, ranks, Rendezvous(ranks, workload.model).meet)
    block = _how_many(trial, ranks)
    training = _Training(trial, workload.model, ranks, block, find_unused_parameters)

    def turn(done: int) -> list[Seen]:
        seen = training.turn(plans)
        if progress is not None:
            progress(done + 1, max(done + 1, TURNS[0]))
        return seen

    return in_turns(ranks, turn)


@dataclass(frozen=True)
class _Training:
    """The iterations, under one engine after the other.

    Attributes:
        trial: runs them.
        model: what they train.
        ranks: the ranks, which run them together.
        block: how many follow one another.
        find_unused_parameters: parameters may get no gradient.
    """

    trial: Trial
    model: nn.Module
    ranks: Transport
    block: int
    find_unused_parameters: bool

    def turn(self, plans: Plans) -> list[Seen]:
        """Return what is seen by each plan; one that corrects momentum comes second."""
        seen = []
        alone_s: dict[tuple[Bucket, ...], float] = {(): 0.0}
        own_update_s = 0.0
        for (kind, corrected), plan in plans.items():
            others = tuple(b for b in plan.buckets if b.compressor.kind != kind)
            if others not in alone_s:
                part = _part(self.model, plan, others)
                alone_s[others], *_ = self._compared(*part, kind)
            later_s, thread_s, update_s = self._compared(self.model, plan, kind)
            if not corrected:
                own_update_s = update_s
            spared_s = own_update_s - update_s
            seen.append((later_s - spared_s - alone_s[others], thread_s))
        return seen

    def _compared(
        self, model: nn.Module, plan: Plan, kind: str
    ) -> tuple[float, float, float]:
        """Return what is seen by ``plan`` for ``model``, beside iterations without.

        And the update's seconds in those. The first iteration, in which residuals are
        empty and thresholds unknown, does not count.
        """
        self.ranks.barrier()
        with self._engine(model, plan) as engine:
            self.trial.iterate()
            rests, works = [self._resting(engine)], []
            for _ in range(WORKING):
                works.append(self._working(engine, kind))
                rests.append(self._resting(engine))
        works_s, thread_s = np.mean(works, axis=0).tolist()
        between = [np.mean(pair, axis=0) for pair in pairwise(rests)]
        rests_s, update_s = np.mean(between, axis=0).tolist()
        return works_s - rests_s, thread_s, update_s

    def _resting(self, engine: Engine) -> list[float]:
        """Return how long they are while nothing travels, and their updates."""
        with engine.no_sync():
            timings = [self.trial.run(1, 0) for _ in range(self.block)]
        return _medians([(float(t.total_s[0]), float(t.update_s[0])) for t in timings])

    def _working(self, engine: Engine, kind: str) -> list[float]:
        """Return how long they are, and how long the thread works for ``kind``."""
        return _medians(
            [
                (_iteration_s(self.trial, engine), busy_s(engine, kind))
                for _ in range(self.block)
            ]
        )

    def _engine(self, model: nn.Module, plan: Plan) -> Engine:
        return Engine(
            model,
            plan,
            LocalTransport(self.ranks.device),
            find_unused_parameters=self.find_unused_parameters,
            gradient_as_bucket_view=True,
            on_nonfinite="skip",
            optimizer=self.trial.optimizer,
        )


def _part(
    model: nn.Module, plan: Plan, buckets: Sequence[Bucket]
) -> tuple[nn.Module, Plan]:
    """Return the parameters in ``buckets`` of ``plan`` as a model, and a plan for it.

    They are called by their numbers.
    """
    parameters = trainable(model)
    names = [name for bucket in buckets for name in bucket.tensors]
    part = nn.ParameterList(parameters[name] for name in names)
    number = {name: str(index) for index, name in enumerate(names)}
    renamed = tuple(
        bucket.model_copy(update={"tensors": tuple(number[n] for n in bucket.tensors)})
        for bucket in buckets
    )
    planned = PlannedModel(name=plan.model.name, fingerprint=model_fingerprint(part))
    changes = {"model": planned, "buckets": renamed, "momentum_correction": False}
    return part, plan.model_copy(update=changes)


def _how_many(trial: Trial, ranks: Transport) -> int:
    """Return how many iterations a block has; a collective call."""
    fewest, most = BLOCK
    longest_s: float = max(
        ranks.gather_objects(float(np.median(trial.run(3, 1).total_s)))
    )
    return max(fewest, min(most, int(BLOCK_S / longest_s)))


def _medians(block: Sequence[tuple[float, ...]]) -> list[float]:
    """Return the medians over all iterations but the first quarter."""
    medians: list[float] = np.median(block[len(block) // 4 :], axis=0).tolist()
    return medians


def _iteration_s(trial: Trial, engine: Engine) -> float:
    """Run one; return how long it is, less what ``engine`` does after backward."""
    timings = trial.run(1, 0)
    return float(timings.total_s[0]) - _exposed_s(engine)


def _exposed_s(engine: Engine) -> float:
    """Return how long after the last step's backward it was busy."""
    assert engine.last_moments is not None
    seconds = engine.last_moments.exposed_s()
    assert seconds is not None
    return seconds


def _corrected(
    costs: Sequence[CompressionCost],
    middle: Sequence[CompressionCost],
    compress: float,
    codec: float,
    momentum_s: float,
) -> tuple[CompressionCost, ...]:
    """Return ``costs`` in place.

    Args:
        costs: at all densities.
        middle: those at the density that was seen in place, of the same sizes.
        compress: the factor on what delays backward, at that density.
        codec: likewise on what occupies the thread.
        momentum_s: of momentum correction, an element; NaN: not known.
    """
    seen = {cost.numel: cost for cost in middle}
    unknown = math.isnan(momentum_s)
    return tuple(
        cost.longer(compress=compress, coding=codec).model_copy(
            update={
                "compress_s": _longer(cost.compress_s, at.compress_s, compress),
                "encode_s": _longer(cost.encode_s, at.encode_s, codec),
                "decompress_s": _longer(cost.decompress_s, at.decompress_s, codec),
                **({} if unknown else {"momentum_s": cost.numel * momentum_s}),
            }
        )
        for cost, at in ((cost, seen[cost.numel]) for cost in costs)
    )


def _longer(seconds: float, seen_s: float, factor: float) -> float:
    """Return ``seconds``, longer by what ``factor`` makes ``seen_s`` longer.

    Where that makes it shorter, by the factor itself, so that something is left.
    """
    return seconds * factor if factor < 1 else seconds + (factor - 1) * seen_s
