"""Trains a workload by a plan."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    closing,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from comm_plan.errors import CollectiveError
from comm_plan.plans import Plan, RunRecord
from comm_plan.runtime import randomness
from comm_plan.runtime.agreement import check_settings
from comm_plan.runtime.checkpoint import Checkpoints, Position
from comm_plan.runtime.density_warmup import DensityWarmup, density_in
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.iteration import iterate
from comm_plan.runtime.learning_rate import UNCHANGED, LearningRate
from comm_plan.runtime.record import EngineRecorder
from comm_plan.runtime.refusals import check_seed
from comm_plan.runtime.second_moments.choice import estimator, micro_batches
from comm_plan.runtime.step import OnNonFinite
from comm_plan.transports.base import Transport
from comm_plan.transports.progress import Progress
from comm_plan.workloads.base import Workload
from comm_plan.workloads.modes import evaluating, training
from comm_plan.workloads.seeding import seed_all

logger = logging.getLogger("comm_plan")


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


Watcher = Callable[[Event, Engine], None]


def watch_nothing(event: Event, engine: Engine) -> None:
    """Ignore the event."""


OnEngine = Callable[[Engine], AbstractContextManager[object]]


def leave_alone(engine: Engine) -> AbstractContextManager[object]:
    """Do nothing with the engine."""
    return nullcontext()


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
        elastic: the same if there is one, even if files of ranks were lost.
        on_nonfinite: see :class:`Engine`.
        find_unused_parameters: see :class:`Engine`.
        micro_batches: cut each batch into so many for the second moments that VGC
            needs; 1: take exact ones; None: those where they can be had.
        learning_rate: how it changes over the run.
        density_warmup: densities of the first epochs for sparse methods; or over how
            many epochs they fall to the plan's.
        watcher: is called after each step.
        on_engine: is lent the engine for the length of the run.
        agreed: what else must be the same on all ranks, by name.

    Raises:
        InputError: the seed is below 0.
    """

    epochs: int | None = None
    steps: int | None = None
    seed: int = 0
    checkpoint: Path | None = None
    checkpoint_every: int = 0
    resume: bool = False
    elastic: bool = False
    on_nonfinite: OnNonFinite = "stop"
    find_unused_parameters: bool = False
    micro_batches: int | None = None
    learning_rate: LearningRate = UNCHANGED
    density_warmup: DensityWarmup = ()
    watcher: Watcher = watch_nothing
    on_engine: OnEngine = leave_alone
    agreed: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what could not begin."""
        check_seed(self.seed)

    def settings(self) -> dict[str, object]:
        """Return what must be the same on all ranks, by name."""
        each = {one.name: getattr(self, one.name) for one in fields(self)}
        agreed = each.pop("agreed")
        # Folders may be called otherwise on other hosts.
        each["checkpoint"] = "given" if self.checkpoint else "not given"
        return {
            **{
                f"option {n}": value for n, value in each.items() if not callable(value)
            },
            **agreed,
        }


def train(
    workload: Workload, plan: Plan, transport: Transport, options: Options
) -> RunRecord:
    """Train ``workload`` by ``plan`` on all ranks of ``transport``.

    Returns:
        The record of the run.

    Raises:
        MismatchError: the plan does not fit the workload or the run.
        NonFiniteError: a gradient held inf or NaN and ``on_nonfinite`` is ``stop``.
        CollectiveError: a collective failed or timed out.
    """
    with running(workload, plan, transport, options) as run:
        for _ in run.epochs():
            pass
        return run.record()


@contextmanager
def running(
    workload: Workload, plan: Plan, transport: Transport, options: Options
) -> Iterator[Run]:
    """Lend a run that is about to begin.

    Raises:
        MismatchError: the plan does not fit the workload or the run, or ranks differ.
    """
    seed_all(options.seed * transport.world_size + transport.rank)
    model = training(workload.model.to(transport.device))
    if transport.rank == 0:
        _tell_of_frozen(model)
    optimizer = workload.optimizer(model.parameters())
    check_settings(
        {
            "workload": workload.name,
            "batch size": workload.batch_size,
            **options.settings(),
            "optimizer": type(optimizer).__name__,
            **_settings_of(optimizer),
        },
        transport,
    )
    parts = micro_batches(
        workload,
        plan,
        transport,
        options.micro_batches,
        options.seed,
        tell=logger.warning,
    )
    engine = Engine(
        model,
        plan,
        transport,
        seed=options.seed,
        on_nonfinite=options.on_nonfinite,
        find_unused_parameters=options.find_unused_parameters,
        gradient_as_bucket_view=True,  # no loop here keeps a gradient
        optimizer=optimizer,
        second_moments=estimator(model, parts),
    )
    with closing(engine), options.on_engine(engine):
        yield Run(workload, transport, options, model, optimizer, engine, parts)


def _settings_of(optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """Return what each group of parameters is updated with, by name."""
    return {
        f"{key} of the optimizer's group {number}": value
        for number, group in enumerate(optimizer.param_groups)
        for key, value in group.items()
        if key != "params"
    }


def _tell_of_frozen(model: nn.Module) -> None:
    """Say which modules stay out of training mode."""
    names = [name for name, module in model.named_modules() if not module.training]
    if names:
        logger.warning(
            "%d modules stay in eval(), as the workload has them, such as %s: their "
            "dropout and batch norm do not train",
            len(names),
            names[0],
        )


class Run:
    """One training run, from its first step to its last."""

    def __init__(
        self,
        workload: Workload,
        transport: Transport,
        options: Options,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        engine: Engine,
        parts: int,
    ) -> None:
        self.workload = workload
        self.transport = transport
        self.options = options
        self.model = model
        self.optimizer = optimizer
        self.engine = engine
        self.base_rates = [group["lr"] for group in optimizer.param_groups]
        self.parts = parts
        self.density_floor = 0.0
        self.position = Position()
        self.epoch_random = randomness.states()
        self.checkpoints: Checkpoints | None = None
        if options.checkpoint:
            settings = {
                "seed": options.seed,
                "batch size": workload.batch_size,
                "optimizer": type(optimizer).__name__,
            }
            self.checkpoints = Checkpoints(
                options.checkpoint, transport, settings, optimizer
            )
            self._resume_or_begin(self.checkpoints)
        self.recorder = EngineRecorder(engine)

    def _resume_or_begin(self, checkpoints: Checkpoints) -> None:
        elastic = self.options.elastic
        if self.options.resume or (elastic and checkpoints.are_there()):
            self.position, self.epoch_random = checkpoints.load(
                self.model, self.optimizer, self.engine, incomplete=elastic
            )
        else:
            checkpoints.refuse_used()

    def epochs(self) -> Iterator[int]:
        """Train to the end; yield each epoch that is done."""
        for epoch in self._epochs_left():
            self._warm_up(epoch)
            with self.recorder.counting_traffic():
                for loss, seconds in self._steps(epoch):
                    self._watch(epoch, loss, seconds)
                self._end_round()
            self._checkpoint()
            self._evaluate(epoch)
            yield epoch
            if self._enough():
                break

    def record(self) -> RunRecord:
        """Return what happened; a collective call."""
        return self.recorder.record(
            self.transport,
            workload=self.workload.name,
            seed=self.options.seed,
            steps=self.position.step,
            micro_batches=self.parts,
        )

    def _epochs_left(self) -> Iterator[int]:
        if self._enough():
            return iter(())
        if self.options.steps is not None and self.options.epochs is None:
            return itertools.count(self.position.epoch)
        last = self.options.epochs or self.workload.epochs
        return iter(range(self.position.epoch, last))

    def _enough(self) -> bool:
        steps = self.options.steps
        return steps is not None and self.position.step >= steps

    def _steps(self, epoch: int) -> Iterator[tuple[float, float]]:
        """Do the rest of an epoch; yield loss and seconds of each step."""
        for batch in self._rest_of_data(epoch):
            self._tell(Progress(epoch, self.position.batch + 1))
            yield self._step(batch)
            if self._enough():
                return
        self._tell(Progress(epoch, self.position.batch, at_end=True))
        self.position = replace(self.position, epoch=epoch + 1, batch=0)

    def _rest_of_data(self, epoch: int) -> Iterator[Any]:
        """Return the batches of an epoch that are not done yet.

        After a resume the others are passed over. Whatever random numbers the data
        draws meanwhile were drawn before: as when the epoch began, and once only.
        """
        ranks, seed = self.transport, self.options.seed
        of_epoch = partial(
            self.workload.batches, ranks.rank, ranks.world_size, epoch, seed
        )
        done = self.position.batch
        if not done:
            self.epoch_random = randomness.states()
            return of_epoch()
        with randomness.kept():
            randomness.restore(self.epoch_random)
            batches = iter(of_epoch())
            next(itertools.islice(batches, done, done), None)
        return batches

    def _tell(self, progress: Progress) -> None:
        if self.transport.liveness is not None:
            self.transport.liveness.note(progress)

    def _step(self, batch: Any) -> tuple[float, float]:
        if self.options.learning_rate != UNCHANGED:
            self._set_learning_rate()
        result = iterate(
            self.workload.loss,
            self.model,
            self.optimizer,
            batch,
            micro_batches=self.parts,
            no_sync=self.engine.no_sync,
        )
        done = self.position
        self.position = replace(done, step=done.step + 1, batch=done.batch + 1)
        return result

    def _set_learning_rate(self) -> None:
        """Set the optimizer's rates for the step that comes."""
        done, steps = self.position, self.epoch_steps
        passed = done.epoch * steps + done.batch
        # Divided once, as a reader of "step:1.3" does.
        epochs, end = passed / steps, self._end(passed)
        factor = self.options.learning_rate.factor(epochs, end, 1 / steps)
        for group, rate in zip(
            self.optimizer.param_groups, self.base_rates, strict=True
        ):
            group["lr"] = rate * factor

    @cached_property
    def epoch_steps(self) -> int:
        """Steps of an epoch."""
        with randomness.kept():
            return self.workload.steps_of_epoch(self.transport.world_size)

    def _end(self, passed: int) -> float:
        """Return at which epoch the run ends, with a fraction.

        Args:
            passed: steps, all of this number of ranks, to this place in the data. On
                another number the run may have come here in fewer or more.
        """
        steps, epochs = self.options.steps, self.options.epochs
        if steps is None:
            return epochs or self.workload.epochs
        end = (passed + steps - self.position.step) / self.epoch_steps
        return min(end, epochs or math.inf)

    def _watch(self, epoch: int, loss: float, seconds: float) -> None:
        self.recorder.add_step(seconds)
        self.recorder.add_loss(loss)
        event = Event(
            step=self.position.step,
            epoch=epoch,
            loss=loss,
            iteration_s=seconds,
            message_nbytes=self.recorder.last_nbytes,
            dense_nbytes=sum(bucket.dense_nbytes for bucket in self.engine.buckets),
            density_floor=self.density_floor,
        )
        self.options.watcher(event, self.engine)
        every = self.options.checkpoint_every
        if every and self.position.step % every == 0:
            self._checkpoint()

    def _end_round(self) -> None:
        """Bring local steps together before the model is saved and judged."""
        begun_s, exchanges = time.perf_counter(), self.engine.step
        self.engine.synchronise()
        if self.engine.step > exchanges:
            self.recorder.add_end_of_round(time.perf_counter() - begun_s)

    def _evaluate(self, epoch: int) -> None:
        """Let rank 0 judge the model; the others wait, and no iteration counts it."""
        if self.transport.rank == 0:
            self._judge(epoch)
            self.transport.barrier()
            return
        try:
            self.transport.barrier()
        except CollectiveError as error:
            raise CollectiveError(
                "rank 0 does not come back from evaluating the model: give a longer "
                f"--timeout, or let evaluate take less ({error})"
            ) from error

    def _judge(self, epoch: int) -> None:
        with evaluating(self.model), randomness.kept():
            result = self.workload.evaluate(self.model)
        if result is not None:
            self.recorder.add_evaluation(*result, self.position.step, epoch)

    def _checkpoint(self) -> None:
        if self.checkpoints:
            self._end_round()
            self.checkpoints.save(
                self.position,
                self.model,
                self.optimizer,
                self.engine,
                self.epoch_random,
            )

    def _warm_up(self, epoch: int) -> None:
        warmup, plan = self.options.density_warmup, self.engine.plan
        self.density_floor = density_in(epoch, warmup, plan)
        self.engine.set_density_floor(self.density_floor)
