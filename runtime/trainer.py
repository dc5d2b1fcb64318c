"""Trains a workload by a plan and records what really happened."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import platform
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from comm_plan.plans import (
    BucketTraffic,
    Evaluation,
    IterationTimes,
    Plan,
    RunRecord,
    Traffic,
)
from comm_plan.plans.parameters import model_fingerprint
from comm_plan.runtime import randomness
from comm_plan.runtime.bucket import Bucket
from comm_plan.runtime.checkpoint import Checkpoints, Progress
from comm_plan.runtime.engine import Engine, OnNonFinite
from comm_plan.transports.base import Transport
from comm_plan.workloads.base import Workload

WARMUP_STEPS = 3
"""First steps whose times are left out: allocations, first touches, connections."""

GTOPK_WARMUP = (0.25, 0.0725, 0.015, 0.004)
"""Densities of the first epochs (gTop-k paper, section IV-B)."""


@dataclass(frozen=True)
class Event:
    """What a watcher of a run is told after each step."""

    step: int
    epoch: int
    loss: float
    iteration_s: float
    message_nbytes: int
    dense_nbytes: int
    density_floor: float
    skipped: bool
    evaluation: Evaluation | None = None


Watcher = Callable[[Event, Engine], None]


def watch_nothing(event: Event, engine: Engine) -> None:
    """Ignore the event."""


@dataclass(frozen=True)
class Options:
    """How to train.

    Attributes:
        epochs: passes over the data; None: the workload's own number.
        steps: stop after so many steps in all, whatever ``epochs`` says.
        seed: of data order, dropout and stochastic compressors.
        checkpoint: folder for checkpoints; None: none are written.
        checkpoint_every: steps between two checkpoints, beside those at the end of
            each epoch and of the run; 0: no others.
        resume: go on from the newest checkpoint.
        on_nonfinite: see :class:`Engine`.
        find_unused_parameters: see :class:`Engine`.
        density_warmup: densities of the first epochs for sparse methods.
        watcher: is called after each step.
    """

    epochs: int | None = None
    steps: int | None = None
    seed: int = 0
    checkpoint: Path | None = None
    checkpoint_every: int = 0
    resume: bool = False
    on_nonfinite: OnNonFinite = "stop"
    find_unused_parameters: bool = False
    density_warmup: Sequence[float] = ()
    watcher: Watcher = watch_nothing


@dataclass
class _Log:
    """What is measured while the run goes on."""

    iterations_s: list[float] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    sent_nbytes: list[list[int]] = field(default_factory=list)
    loss: float | None = None


def train(
    workload: Workload, plan: Plan, transport: Transport, options: Options
) -> RunRecord:
    """Train ``workload`` by ``plan`` on all ranks of ``transport``.

    Returns:
        The record of the run, with the iteration times of the slowest rank.

    Raises:
        MismatchError: the plan does not fit the workload or the run.
        NonFiniteError: a gradient held inf or NaN and ``on_nonfinite`` is ``stop``.
        CollectiveError: a collective failed or timed out.
    """
    randomness.seed_all(options.seed * transport.world_size + transport.rank)
    model = workload.model.to(transport.device).train()
    optimizer = workload.optimizer(model.parameters())
    engine = Engine(
        model,
        plan,
        transport,
        seed=options.seed,
        on_nonfinite=options.on_nonfinite,
        find_unused_parameters=options.find_unused_parameters,
    )
    try:
        run = _Run(workload, transport, options, model, optimizer, engine)
        run.go()
        return run.record(plan)
    finally:
        engine.close()


class _Run:
    """One training run, from its first step to its record."""

    def __init__(
        self,
        workload: Workload,
        transport: Transport,
        options: Options,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        engine: Engine,
    ) -> None:
        self.workload = workload
        self.transport = transport
        self.options = options
        self.model = model
        self.optimizer = optimizer
        self.engine = engine
        self.progress = Progress()
        self.epoch_random = randomness.states()
        self.log = _Log()
        self.checkpoints = (
            Checkpoints(options.checkpoint, transport) if options.checkpoint else None
        )
        if self.checkpoints:
            self._resume_or_begin(self.checkpoints)
        self.first_tx_nbytes = _interface_tx_nbytes()

    def _resume_or_begin(self, checkpoints: Checkpoints) -> None:
        if self.options.resume:
            self.progress, self.epoch_random = checkpoints.load(
                self.model, self.optimizer, self.engine
            )
        else:
            checkpoints.refuse_used()

    def go(self) -> None:
        """Train to the end."""
        for epoch in self._epochs():
            self._warm_up(epoch)
            for loss, seconds in self._steps(epoch):
                self._watch(epoch, loss, seconds)
            self._evaluate(epoch)
            self._checkpoint()
            if self._enough():
                break

    def record(self, plan: Plan) -> RunRecord:
        """Return what happened; a collective call."""
        slowest = np.max(self.transport.gather_objects(self.log.iterations_s), axis=0)
        hosts = self.transport.gather_objects(socket.gethostname())
        return RunRecord(
            workload=self.workload.name,
            solver=plan.solver,
            plan_sha256=plan.sha256,
            model_fingerprint=model_fingerprint(self.model),
            backend=self.transport.backend,
            world_size=self.transport.world_size,
            hosts=tuple(hosts),
            environment=_environment(),
            seed=self.options.seed,
            steps=self.progress.step,
            skipped_steps=self.engine.skipped_steps,
            iteration=_summary(slowest),
            iterations_s=tuple(slowest),
            predicted_iteration_s=plan.predicted and plan.predicted.iteration_s,
            traffic=self._traffic(),
            evaluations=tuple(self.log.evaluations),
            final_loss=self._final_loss(),
            parameters_sha256=parameters_sha256(self.model),
        )

    def _final_loss(self) -> float | None:
        loss = self.log.loss
        return loss if loss is not None and math.isfinite(loss) else None

    def _epochs(self) -> Iterator[int]:
        if self._enough():
            return iter(())
        if self.options.steps is not None and self.options.epochs is None:
            return itertools.count(self.progress.epoch)
        last = self.options.epochs or self.workload.epochs
        return iter(range(self.progress.epoch, last))

    def _enough(self) -> bool:
        steps = self.options.steps
        return steps is not None and self.progress.step >= steps

    def _steps(self, epoch: int) -> Iterator[tuple[float, float]]:
        """Do the rest of an epoch; yield loss and seconds of each step."""
        for batch in self._rest_of_data(epoch):
            yield self._step(batch)
            if self._enough():
                return
        self.progress = replace(self.progress, epoch=epoch + 1, batch=0)

    def _rest_of_data(self, epoch: int) -> Iterator[Any]:
        """Return the batches of an epoch that are not done yet.

        After a resume the others are passed over. Whatever random numbers the data
        draws meanwhile were drawn before: as when the epoch began, and once only.
        """
        ranks, seed = self.transport, self.options.seed
        of_epoch = partial(
            self.workload.batches, ranks.rank, ranks.world_size, epoch, seed
        )
        done = self.progress.batch
        if not done:
            self.epoch_random = randomness.states()
            return of_epoch()
        with randomness.kept():
            randomness.restore(self.epoch_random)
            batches = iter(of_epoch())
            next(itertools.islice(batches, done, done), None)
        return batches

    def _step(self, batch: Any) -> tuple[float, float]:
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.workload.loss(self.model, batch)
        loss.backward()
        self.optimizer.step()
        if self.transport.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        done = self.progress
        self.progress = replace(done, step=done.step + 1, batch=done.batch + 1)
        return loss.item(), seconds

    def _watch(self, epoch: int, loss: float, seconds: float) -> None:
        sent = [bucket.sent_nbytes for bucket in self.engine.buckets]
        self.log.loss = loss
        self.log.iterations_s.append(seconds)
        self.log.sent_nbytes.append(sent)
        event = Event(
            step=self.progress.step,
            epoch=epoch,
            loss=loss,
            iteration_s=seconds,
            message_nbytes=sum(sent),
            dense_nbytes=sum(bucket.dense_nbytes for bucket in self.engine.buckets),
            density_floor=self._floor(epoch),
            skipped=self.engine.last_step_skipped,
        )
        self.options.watcher(event, self.engine)
        every = self.options.checkpoint_every
        if every and self.progress.step % every == 0:
            self._checkpoint()

    def _evaluate(self, epoch: int) -> None:
        """Let rank 0 judge the model; the others wait at the next collective."""
        if self.transport.rank != 0:
            return
        self.model.eval()
        with randomness.kept():
            result = self.workload.evaluate(self.model)
        self.model.train()
        if result is not None and math.isfinite(result[1]):  # JSON has no NaN
            metric, value = result
            self.log.evaluations.append(
                Evaluation(
                    step=self.progress.step, epoch=epoch, metric=metric, value=value
                )
            )

    def _checkpoint(self) -> None:
        if self.checkpoints:
            self.checkpoints.save(
                self.progress,
                self.model,
                self.optimizer,
                self.engine,
                self.epoch_random,
            )

    def _floor(self, epoch: int) -> float:
        warmup = self.options.density_warmup
        return warmup[epoch] if epoch < len(warmup) else 0.0

    def _warm_up(self, epoch: int) -> None:
        self.engine.warm_up(self._floor(epoch))

    def _traffic(self) -> Traffic | None:
        if not self.log.sent_nbytes:
            return None
        means = np.mean(self.log.sent_nbytes, axis=0)
        buckets = tuple(map(_bucket_traffic, self.engine.buckets, means.tolist()))
        dense = sum(bucket.dense_nbytes for bucket in buckets)
        message = sum(bucket.message_nbytes for bucket in buckets)
        last = _interface_tx_nbytes()
        first = self.first_tx_nbytes
        steps = len(self.log.sent_nbytes)
        return Traffic(
            buckets=buckets,
            dense_nbytes=dense,
            message_nbytes=message,
            compression_ratio=dense / message if message else 1.0,
            interface_tx_nbytes=(
                None if first is None or last is None else (last - first) / steps
            ),
        )


def parameters_sha256(model: nn.Module) -> str:
    """Return the SHA-256 of all parameters and buffers, to compare runs bit by bit."""
    digest = hashlib.sha256()
    for tensor in [*model.parameters(), *model.buffers()]:
        raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(raw.numpy().tobytes())
    return digest.hexdigest()


def _bucket_traffic(bucket: Bucket, message_nbytes: float) -> BucketTraffic:
    return BucketTraffic(
        tensors=len(bucket.parameters),
        kind=bucket.planned.compressor.kind,
        collective=bucket.planned.collective,
        dense_nbytes=bucket.dense_nbytes,
        message_nbytes=message_nbytes,
    )


def _summary(iterations_s: Sequence[float]) -> IterationTimes:
    warm = iterations_s[WARMUP_STEPS:]
    times = np.asarray(warm if len(warm) else iterations_s)
    if not times.size:
        return IterationTimes(count=0, median_s=0.0, p95_s=0.0, min_s=0.0)
    return IterationTimes(
        count=times.size,
        median_s=float(np.median(times)),
        p95_s=float(np.percentile(times, 95)),
        min_s=float(times.min()),
    )


def _environment() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "threads": str(torch.get_num_threads()),
        "cores": str(os.cpu_count()),
    }


def _interface_tx_nbytes() -> int | None:
    """Return the bytes that all network interfaces of this host have sent, on Linux."""
    counters = Path("/sys/class/net").glob("*/statistics/tx_bytes")
    values = [int(counter.read_text()) for counter in counters]
    return sum(values) if values else None
