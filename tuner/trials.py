"""Running a plan on the user's own model, and leaving no trace of it.

Every block of iterations starts from the same parameters, buffers and random numbers,
with a new optimizer and empty residuals, on the same batches, and all of it is put back
at its end, also when it fails.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from comm_plan.arrays import FloatArray
from comm_plan.plans import Plan, Timing
from comm_plan.runtime.drift import of_all_ranks
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.iteration import iterate
from comm_plan.runtime.restored import restored
from comm_plan.runtime.second_moments.choice import (
    EXACT,
    estimator,
    micro_batches,
    needed,
)
from comm_plan.runtime.step import OnNonFinite
from comm_plan.runtime.timing import StepSeconds, median_timing
from comm_plan.transports.base import Transport
from comm_plan.workloads.base import Workload, endless
from comm_plan.workloads.seeding import seed_all

WARM_UP = 2
"""First iterations of a block, which are not counted: allocations, first touches."""

WARM_UP_S, LONGEST_WARM_UP = 0.1, 10
"""Nor is this time, up to so many iterations: until then caches, and which core a
thread is on, are those of what ran before; iterations of 10 ms were 20 % slower."""

CHECKS = 20
"""How often in a block with a time limit the ranks agree whether it is over."""

Watcher = Callable[[int, int], None]


@dataclass(frozen=True)
class Block:
    """Iterations of one plan, one after the other.

    Attributes:
        seconds: [iterations], the mean of the ranks, which wait for each other; of
            local steps the mean of the round.
        losses: [iterations], the mean over the ranks.
        timing: medians of when each bucket travelled, waiting for others left out;
            None: of local steps, and where batches are cut.
        overhead_s: what else the block took: making the engine, the warm-up.
    """

    seconds: FloatArray
    losses: FloatArray
    timing: Timing | None
    overhead_s: float


def warm_up_of(iteration_s: float) -> int:
    """Return how many iterations of about so many seconds are not counted."""
    wanted = math.ceil(WARM_UP_S / iteration_s)
    return min(max(WARM_UP, wanted), LONGEST_WARM_UP)


def warm_up_before(plan: Plan) -> int:
    """Return :func:`warm_up_of` the predicted iteration time of ``plan``.

    Of a plan without a prediction :data:`WARM_UP`.
    """
    return warm_up_of(plan.predicted.iteration_s) if plan.predicted else WARM_UP


class Trials:
    """A workload on which plans are tried; every rank makes the same calls.

    Args:
        workload: what to run; its model is moved to the transport's device.
        transport: the ranks.
        seed: of the data and of stochastic compressors.
        find_unused_parameters: see :class:`~comm_plan.runtime.engine.Engine`.
        on_nonfinite: likewise.
    """

    def __init__(
        self,
        workload: Workload,
        transport: Transport,
        seed: int = 0,
        *,
        find_unused_parameters: bool = False,
        on_nonfinite: OnNonFinite = "skip",
    ) -> None:
        self._workload = workload
        self._transport = transport
        self._seed = seed
        self._find_unused_parameters = find_unused_parameters
        self._on_nonfinite: OnNonFinite = on_nonfinite
        self._model = workload.model.to(transport.device)
        self._parts: int | None = None

    def run(
        self,
        plan: Plan,
        iterations: int,
        *,
        warm_up: int | None = None,
        limit_s: float = math.inf,
        seed: int | None = None,
        done: Watcher = lambda count, total: None,
    ) -> Block:
        """Return what ``iterations`` iterations by ``plan`` take, after a warm-up.

        Of local steps as many as whole rounds have.

        Args:
            plan: the plan.
            iterations: how many count, at least 1.
            warm_up: how many to run before; None: :func:`warm_up_before` it.
            limit_s: fewer than ``iterations`` are enough after so many seconds; the
                ranks look :data:`CHECKS` times whether it is so.
            seed: of the data and of stochastic compressors; None: the trials' own.
            done: called after each iteration: how many there were, of how many.

        Raises:
            CollectiveError: a collective failed.
        """
        started_s = time.perf_counter()
        if warm_up is None:
            warm_up = warm_up_before(plan)
        every = plan.round_steps
        warm_up, iterations = (-(-n // every) * every for n in (warm_up, iterations))
        between_checks = -(-iterations // (CHECKS * every)) * every
        chosen = self._seed if seed is None else seed
        rows: list[tuple[float, float]] = []
        reached: list[StepSeconds] = []
        ranks, model = self._transport, self._model
        batches = endless(self._workload.batches, ranks.rank, ranks.world_size, chosen)
        optimizer = self._workload.optimizer(model.parameters())
        with ExitStack() as entered:
            entered.enter_context(restored(model))
            seed_all(chosen * ranks.world_size + ranks.rank)
            parts = self._micro_batches(plan, chosen)
            engine = Engine(
                model,
                plan,
                ranks,
                seed=chosen,
                on_nonfinite=self._on_nonfinite,
                find_unused_parameters=self._find_unused_parameters,
                gradient_as_bucket_view=True,
                optimizer=optimizer,
                second_moments=estimator(model, parts),
            )
            entered.enter_context(engine)
            begun_s = time.perf_counter()
            for batch in itertools.islice(batches, warm_up + iterations):
                step = iterate(
                    self._workload.loss,
                    model,
                    optimizer,
                    batch,
                    micro_batches=parts,
                    no_sync=engine.no_sync,
                )
                rows.append(step)
                # Moments of local steps are a round's, and again in each of its steps.
                moments = engine.last_moments if every == 1 else None
                if moments is not None and (times := moments.seconds()) is not None:
                    reached.append(times)
                done(len(rows), warm_up + iterations)
                counted = len(rows) - warm_up
                is_check = counted > 0 and counted % between_checks == 0
                if limit_s < math.inf and is_check:
                    used_s = time.perf_counter() - begun_s
                    if ranks.broadcast_object(used_s) > limit_s:
                        break
        of_ranks = np.array(ranks.gather_objects(rows))[:, warm_up:]
        seconds = of_ranks[:, :, 1].mean(axis=0)
        seconds = seconds.reshape(-1, every).mean(axis=1).repeat(every)
        took_s = ranks.broadcast_object(time.perf_counter() - started_s)
        return Block(
            seconds=seconds,
            losses=of_ranks[:, :, 0].mean(axis=0),
            timing=self._timing(reached[warm_up:]),
            overhead_s=took_s - float(seconds.sum()),
        )

    def _micro_batches(self, plan: Plan, seed: int) -> int:
        """Return into how many a batch is cut; the model is asked once."""
        if not needed(plan):
            return EXACT
        if self._parts is None:
            self._parts = micro_batches(
                self._workload, plan, self._transport, seed=seed
            )
        return self._parts

    def _timing(self, reached: list[StepSeconds]) -> Timing | None:
        of_ranks = self._transport.gather_objects(median_timing(reached))
        known = [timing for timing in of_ranks if timing is not None]
        return of_all_ranks(known) if len(known) == len(of_ranks) else None
