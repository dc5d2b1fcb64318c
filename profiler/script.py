"""Profile the steps of a training loop that is not comm-plan's.

::

    with comm_plan.profile(model, "profile.json"):
        for batch in itertools.islice(batches, 30):
            optimizer.zero_grad()
            loss(model(batch)).backward()
            optimizer.step()

A step ends when an optimizer has updated parameters of the model. What counts as its
backward is the last one before that; all that comes before, such as the micro-batches
of an accumulated gradient, counts as forward, since nothing travels meanwhile: a
gradient that only those reach is ready when backward begins. Forward begins when the
model is called, or, where only parts of it are, when the step before has ended. These
are ordinary steps, which train.

On several ranks each runs its own steps, and all get one profile. The ranks do not meet
in them, so what they cost each other (``waiting_s``, ``contention``) is not in it: for
that there is ``comm-plan profile``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import Self

from comm_plan.errors import InputError
from comm_plan.nested import samples_in
from comm_plan.plans import Profile, check_writable
from comm_plan.plans.compression import KINDS
from comm_plan.plans.parameters import model_fingerprint, trainable
from comm_plan.plans.profile import SecondMoments
from comm_plan.profiler.assembly import assemble, check_parameters, with_findings
from comm_plan.profiler.compression import compression_costs
from comm_plan.profiler.handoff import handing_over, median_s
from comm_plan.profiler.ranks import check_same_model
from comm_plan.profiler.stopwatch import stopwatch
from comm_plan.profiler.timings import (
    BACKWARD,
    DONE,
    FIRST_TENSOR,
    FORWARD,
    MEETING,
    UPDATE,
    Timings,
    sparse_rows,
    timings_of,
)
from comm_plan.runtime.hooks import (
    Listener,
    ParameterPlace,
    attach,
    attach_to_optimizers,
    copyable,
)
from comm_plan.runtime.ownership import owners_of
from comm_plan.runtime.second_moments.choice import parts_of
from comm_plan.runtime.second_moments.survey import Survey
from comm_plan.transports.allocator import keep_memory
from comm_plan.transports.base import Transport
from comm_plan.transports.connect import current_transport

WARMUP = 3
"""Steps that are forgotten."""

FEWEST = 10
"""Steps that must be left: fewer give no medians."""

HANDOFF_EVERY = 5
"""On a CPU so often a step is not timed, but its gradients handed to a thread."""


class profile:
    """Watches the training steps in its block, and writes the model's profile.

    Args:
        model: the model, not wrapped in DistributedDataParallel.
        output: where to write the profile; None: nowhere.
        name: what the profile calls the model; None: its class.
        batch_size: samples of a rank and step; None: the first dimension of what the
            model is called with.
        compressors: which ones to cost on the model's device afterwards.
        transport: the ranks; None: those of torch.distributed, if it is initialised.

    Attributes:
        profile: the profile, once the block has ended.

    Raises:
        InputError: the model is wrapped in DDP, has an engine, or nothing to be
            planned, or ``output`` cannot be written; at the end of the block, fewer
            than 13 steps (on a CPU 16).
        MismatchError: the ranks have different models.
    """

    profile: Profile

    def __init__(
        self,
        model: nn.Module,
        output: str | Path | None = None,
        *,
        name: str | None = None,
        batch_size: int | None = None,
        compressors: Sequence[str] = tuple(KINDS),
        transport: Transport | None = None,
    ) -> None:
        if isinstance(model, DistributedDataParallel):
            raise InputError(
                "the model is wrapped in DistributedDataParallel, whose communication "
                "is no part of a profile: profile the model before it is wrapped"
            )
        if owners_of(model):
            raise InputError(
                "the model has an engine, whose communication is no part of a "
                "profile: close the engine first, or profile before parallelize"
            )
        self._name = name or type(model).__name__
        self._parameters = trainable(model)
        check_parameters(self._name, self._parameters)
        if output is not None:
            check_writable(Path(output))
        self._device = next(iter(self._parameters.values())).device
        if transport is None:
            transport = current_transport(device=self._device)
        self._ranks = transport
        check_same_model(self._ranks.gather_objects(model_fingerprint(model)))
        self._model = model
        self._output = None if output is None else Path(output).absolute()
        self._batch_size = batch_size
        self._compressors = compressors
        keep_memory(self._device)
        self._steps = _Steps(self._parameters, self._device)

    def __enter__(self) -> Self:
        """Hook the model and all optimizers."""
        self._survey = Survey(self._model)
        self._steps.after_first = self._look
        self._hooks = self._steps.attach(self._model)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the hooks off; unless the block failed, make the profile."""
        self._hooks.close()
        self._survey.close()
        if error is not None:
            return
        own = self._steps.timings()
        of_ranks = self._ranks.gather_objects(own)
        lag_s = max(self._ranks.gather_objects(self._steps.lag_s))
        shortest = min(len(each.forward_s) for each in of_ranks)
        profile = assemble(
            self._name,
            self._batch_size or self._steps.samples or 1,
            self._parameters,
            [_last(each, shortest) for each in of_ranks],
            lag_s=lag_s,
        )
        parts = parts_of(profile.batch_size)
        moments = SecondMoments(objection=self._survey.objection, micro_batches=parts)
        found = self._ranks.gather_objects((moments, self._rows))
        profile = with_findings(profile, found)
        costs = compression_costs(
            max(tensor.numel for tensor in profile.tensors),
            kinds=self._compressors,
            device=str(self._device),
            transport=self._ranks,
        )
        self.profile = profile.model_copy(update={"compression": costs})
        if self._output is not None and self._ranks.rank == 0:
            self.profile.save(self._output)

    def _look(self) -> None:
        """Remember what the first step has shown."""
        self._survey.close()
        self._rows = sparse_rows(self._parameters)


class _Steps(Listener):
    """Takes the times of steps as hooks tell of them."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], device: torch.device
    ) -> None:
        self.samples = 0
        self.after_first: Callable[[], None] = lambda: None
        self._of_lags_s: list[list[float]] = []
        self._samples = 0
        self._parameters = parameters
        self._own = frozenset(parameters.values())
        self._hands_over = device.type == "cpu"
        self._watch = stopwatch(device, FIRST_TENSOR + len(parameters))
        self._begun = False
        self._ended = False
        self._graph_task: int | None = None
        self._order: list[int] = []
        self._begin_s = 0.0
        self._host_s = 0.0
        self._number = 0
        self._thread = ExitStack()
        self._rows: list[list[float]] = []
        self._orders: list[tuple[int, ...]] = []
        self._of_host_s: list[float] = []

    def attach(self, model: nn.Module) -> ExitStack:
        """Hook ``model`` and all optimizers; closing what is returned undoes it."""
        places = {
            parameter: ParameterPlace(name, 0, index)
            for index, (name, parameter) in enumerate(self._parameters.items())
        }
        hooks = attach(model, places, self)
        hooks.enter_context(attach_to_optimizers(self._own, after=self._on_updated))
        counting = model.register_forward_pre_hook(
            copyable(self._count), with_kwargs=True
        )
        hooks.callback(counting.remove)
        hooks.callback(self._thread.close)
        return hooks

    @property
    def lag_s(self) -> float:
        """Median seconds until another thread took a gradient."""
        return median_s([lag_s for step in self._of_lags_s for lag_s in step])

    def timings(self) -> Timings:
        """Return the times of the steps that count.

        Raises:
            InputError: there are too few.
        """
        if len(self._rows) < FEWEST:
            needed = WARMUP + FEWEST
            if self._hands_over:
                needed = -(-needed * HANDOFF_EVERY // (HANDOFF_EVERY - 1))
            raise InputError(
                f"{self._number} training steps were run in the block, a profile needs "
                f"about {needed}: a step is a call of the model, a backward, and a "
                "step of an optimizer over its parameters"
            )
        return timings_of(
            np.array(self._rows), np.array(self._of_host_s), tuple(self._orders)
        )

    @property
    def _is_handing_over(self) -> bool:
        """Whether this step's gradients go to a thread, and its times do not count."""
        return self._hands_over and self._number % HANDOFF_EVERY == HANDOFF_EVERY - 1

    def _count(self, model: nn.Module, inputs: object, keywords: object) -> None:
        if model.training and torch.is_grad_enabled() and self._graph_task is None:
            self._samples += samples_in([inputs, keywords]) or 0

    def on_forward(self) -> None:
        if self._begun:
            return
        self._begun = True
        self._watch.mark(FORWARD)

    def on_any_forward(self) -> None:
        """Begin the step once more whose backward raised, so that it has no end."""
        if self._graph_task is not None:
            self._graph_task = None
            self._begun = False
            self._samples = 0

    def on_backward_lost(self) -> None:
        """Begin the step once more, though no forward came in between."""
        self.on_any_forward()

    def on_backward(self, graph_task: int) -> bool:
        if self._graph_task is not None:
            return False
        self._graph_task = graph_task
        self._forget_what_was_dropped()
        self._watch.mark(BACKWARD)
        self._begin_s = time.perf_counter()
        self._order.clear()
        return True

    def _forget_what_was_dropped(self) -> None:
        """Forget gradients of earlier backwards that no optimizer has taken."""
        for index, parameter in enumerate(self._parameters.values()):
            if parameter.grad is None:
                self._watch.forget(FIRST_TENSOR + index)

    def on_gradient(self, place: ParameterPlace, parameter: nn.Parameter) -> None:
        self._watch.mark(FIRST_TENSOR + place.index)
        self._order.append(place.index)

    def on_backward_end(self) -> None:
        self._graph_task = None
        self._host_s = time.perf_counter() - self._begin_s
        self._watch.mark(MEETING)
        self._watch.mark(UPDATE)
        self._ended = True

    def _on_updated(self, optimizer: torch.optim.Optimizer) -> None:
        """End the step if its backward has been."""
        if not self._ended:
            return
        self._watch.mark(DONE)
        moments = self._watch.read()
        self._watch.mark(FORWARD)  # if nobody calls the model itself
        self._thread.close()
        if self._number >= WARMUP and not self._is_handing_over:
            self._rows.append(moments)
            self._orders.append(tuple(self._order))
            self._of_host_s.append(self._host_s)
        self.samples, self._samples = self._samples, 0
        self._begun = self._ended = False
        self._number += 1
        if self._number == 1:
            self.after_first()
        if self._is_handing_over:
            self._of_lags_s.append(self._thread.enter_context(handing_over(self._own)))


def _last(timings: Timings, steps: int) -> Timings:
    """Return the last so many steps: ranks may have run more than others."""
    return Timings(**{name: of[-steps:] for name, of in vars(timings).items()})
