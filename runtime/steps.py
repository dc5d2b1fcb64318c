"""From step to step: what forwards, gradients and optimizers make of them.

:mod:`~comm_plan.runtime.hooks` says what happens in the model. :class:`Steps` hands
gradients to the step that is under way, ends it when it is complete, and begins the
next. What comes between two steps is here too: a forward whose backward failed, a
backward without an update, a loss scale that changes, ranks that have no batches left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable

from comm_plan.errors import CollectiveError, NonFiniteError, RunError
from comm_plan.runtime.buffers import Buffers
from comm_plan.runtime.hooks import Listener, ParameterPlace
from comm_plan.runtime.rounds import Rounds
from comm_plan.runtime.sides import EngineMomentum
from comm_plan.runtime.step import Refusal, Setup, Step
from comm_plan.runtime.timing import Moments
from comm_plan.transports.base import Transport

logger = logging.getLogger("comm_plan")

SKIPPED = "the step is skipped on all ranks"
UNDONE = "the round of local steps is undone on all ranks"
SPOILT = (
    "every gradient is NaN on all ranks, and so is what an optimizer makes of them "
    "(on_nonfinite='skip' skips such steps)"
)


class Steps(Listener):
    """The steps of an engine, one after the other.

    Args:
        engine: whose; it lives as long as the hooks that call this.
        model: the model.
        transport: the ranks, for what they say to each other between two steps.
        setup: what all steps share.
        buffers: follow rank 0 after each step.
        momentum: what the engine applies of the optimizer's.
        scaler: scales the loss; None: nothing does, or it is not known.

    Attributes:
        setup: what the step under way shares with those to come.
        current: the step under way; it may not have begun.
        number: of it; how many were finished.
        skipped: how many of them had no means on any rank: for inf or NaN, for a
            backward that failed, or as they were given up.
        last_skipped: whether the last one had none.
        last_moments: when what happened in the last one; None before the first.
        awaits_update: whether no optimizer has taken the means of the last one yet.
        listening: whether a backward is a step; else it only accumulates.
        density_floor: sparse methods send at least this share of each tensor.
        scale: of the loss.
        rounds: count local steps; None: there are none.
        between: is called on all ranks once the means of a step are there, before the
            optimizer takes them; None: nothing is.
    """

    def __init__(
        self,
        engine: Joinable,
        model: nn.Module,
        transport: Transport,
        setup: Setup,
        *,
        buffers: Buffers,
        momentum: EngineMomentum,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        self._engine: Joinable | None = engine
        self._model = model
        self._transport = transport
        self._buffers = buffers
        self._momentum = momentum
        self._scaler = scaler
        self._forward_failed = False
        self._warned = False
        self.number = 0
        self.skipped = 0
        self.last_skipped = False
        self.last_moments: Moments | None = None
        self.awaits_update = False
        self.listening = True
        self.density_floor = 0.0
        self.scale = self._scale_now()
        self.rounds: Rounds | None = None
        self.between: Callable[[], None] | None = None
        self.setup = setup
        self.begin()

    def begin(self, **changes: Any) -> None:
        """Forget the step under way for a new one; of its set-up ``changes`` differ."""
        self.setup = replace(self.setup, **changes) if changes else self.setup
        self.current = Step(self.setup, self.number, self.density_floor)

    # What the engine asks for

    def close(self) -> None:
        """Let go of the engine, whose residuals must not wait for the collector."""
        self._engine = None

    def end_without_update(self) -> None:
        """End the step under way with what it has; no update by the optimizer follows.

        Raises:
            NonFiniteError, PeerError, CollectiveError: as at the end of any step.
        """
        self._buffers.touched = True
        self._end(self.current.finish)
        self.awaits_update = False

    def shadow(self) -> None:
        """Take part in a step of other ranks, with gradients of zero."""
        self._momentum.settle()
        self._follow_scale()
        self.end_without_update()

    def skip(self) -> None:
        """Skip the step under way on all ranks.

        Raises:
            RunError: the other ranks cannot be told, or have finished the step, as has
                this one.
        """
        self._follow_scale()
        if self.awaits_update and not self.current.has_begun:
            raise RunError(
                "the step is over, and its means are in .grad: call optimizer.step() "
                "again, or go on from a checkpoint"
            )
        self._give_up()

    def give_up_failed(self) -> None:
        """Skip the step whose backward failed, if one did; not called in backward.

        Raises:
            RunError: it cannot be skipped, or a ``GradScaler`` of this rank would not
                learn of it, and go on by another scale than those of the others.
        """
        if self.current.graph_task is None:
            return
        if self.setup.scaled and self.setup.channel.world_size > 1:
            raise RunError(
                "a backward failed, of which this rank's GradScaler does not know: "
                "call engine.skip_step() where the error is caught, and go through "
                "the rest of the iteration, scaler.update() too"
            )
        self._give_up(late=True)

    def require_finished(self) -> None:
        """Go on only if no step has begun that is not finished.

        Raises:
            RunError: parameters got no gradient, or a backward failed and the step
                cannot be skipped.
            CollectiveError: its exchange failed.
        """
        self.give_up_failed()
        if not self.current.received:
            return
        if self.setup.find_unused_parameters or self.current.is_complete:
            self._raise_what_ended_it()
        missing = self.current.missing()
        if self._objection() is None:
            self._give_up(late=True)
        names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise RunError(
            f"{len(missing)} parameters got no gradient in this step: {names}: "
            "if that is meant, pass find_unused_parameters=True (on the command "
            "line: --find-unused-parameters)"
        )

    def rescale(self, factor: float) -> None:
        """Multiply all residuals by ``factor``, as the scale of the loss changes."""
        self.awaits_update = False  # it changes after the update, or instead
        for bucket in self.setup.buckets:
            bucket.rescale(factor)

    def _follow_scale(self) -> None:
        """Tell compressors the scale of the loss; rescale residuals if it changed."""
        before, self.scale = self.scale, self._scale_now()
        if self.scale != before:
            self.rescale(self.scale / before)
        for bucket in self.setup.buckets:
            bucket.compressor.scale = self.scale

    def _scale_now(self) -> float:
        """Return what the scaler multiplies the loss by; 1: there is none."""
        return 1.0 if self._scaler is None else self._scaler.get_scale()

    # What the hooks call

    def is_listening(self) -> bool:
        """Return whether the next backward is a step; DDP's switch is heeded too."""
        if self.rounds is not None:
            return False
        wanted: bool = getattr(self._model, "require_backward_grad_sync", True)
        return self.listening and wanted

    def on_any_forward(self) -> None:
        """Give up the step whose backward failed, if one did."""
        self.give_up_failed()

    def on_forward(self) -> None:
        """Begin a step; align buffers with rank 0 if another forward was before."""
        self.require_finished()
        self._enter()
        repeated, self._forward_failed = self._forward_failed, False
        self._note_begun(again=repeated)
        # Shadows, which some ranks may be where engines are joined, align once a step.
        if not (repeated or self._is_joined):
            with self._explained():
                self._align_buffers()
        self._buffers.touched = True

    def on_local_forward(self) -> None:
        """Settle what the step before has left; this one may begin here."""
        self._momentum.settle()
        self.current.moments.resume()
        self._note_begun()

    def _note_begun(self, again: bool = False) -> None:
        """Note when the first forward of the step begins; ``again``: it does once more.

        Not where a batch is cut for second moments, all whose passes but the last are
        compression to who plans.
        """
        moments = self.current.moments
        if (again or moments.begun is None) and not self.setup.cuts_batches:
            moments.begun = moments.now()

    def on_forward_failed(self) -> None:
        """Take the next forward for this one, which the other ranks do not repeat."""
        self._forward_failed = True

    def _enter(self) -> None:
        """Do what has to be done before the first gradient of a step."""
        self._momentum.settle()
        self._follow_scale()
        if self.awaits_update:
            self._warn_of_dropped_means()
        if self._engine is not None and not self.current.forward_pending:
            Join.notify_join_context(self._engine)
        self.current.forward_pending = True

    def _warn_of_dropped_means(self) -> None:
        """Say once that what a loop has thrown away comes back out of residuals."""
        remembers = any(bucket.compressor.state for bucket in self.setup.buckets)
        if self._warned or not remembers:
            return
        if all(parameter.grad is None for parameter in self._model.parameters()):
            self._warned = True
            logger.warning(
                "step %d: no torch.optim.Optimizer has taken the means of the step "
                "before; if they were thrown away, what a compressor held back of "
                "them still goes with later ones: run such a backward in "
                "engine.no_sync(), or freeze the parameters meanwhile",
                self.number,
            )

    def on_backward_lost(self) -> None:
        """Give up a backward that failed, unless a forward has done so.

        Raises:
            RunError: none has.
        """
        if self.current.graph_task is not None:
            self.give_up_failed()
            raise RunError(
                "an earlier backward failed, and what is left of it may be in the "
                "gradients of this one: call engine.skip_step() where the error is "
                "caught"
            )

    def on_backward(self, graph_task: int) -> bool:
        """Note that backward begins; tell its end for the first one of the step."""
        first = self.current.graph_task is None
        if first:
            if self.awaits_update:
                self._momentum.require_taken()
            self.current.graph_task = graph_task
            self.current.moments.backward = self.current.moments.now()
        return first

    def on_gradient(self, place: ParameterPlace, parameter: nn.Parameter) -> None:
        """Hand the gradient to the step under way."""
        if not self.current.forward_pending:  # of a part of the model, or in eval()
            self._enter()
            self._buffers.touched = True
        self.current.add(place, parameter)

    def on_backward_end(self) -> None:
        """Finish the step unless gradients are missing that may still come."""
        self.current.graph_task = None
        if not self.current.received:
            return
        if self.setup.find_unused_parameters or self.current.is_complete:
            self._finish()

    def on_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Take part in the step even if this rank's loss used no parameter."""
        if self.setup.thread.is_current:  # in on_reduced
            return
        self._momentum.require(optimizer)
        if self.rounds is not None:
            self.rounds.require(optimizer)
        self.require_finished()
        pending = self.current.forward_pending and not self.awaits_update
        if pending and self.setup.find_unused_parameters:
            self._finish(late=True)

    def on_updated(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that the means are taken, and by which parameters."""
        self.awaits_update = False
        if self.rounds is not None:
            self.current.moments.pause()
        if self.setup.find_unused_parameters:
            groups = optimizer.param_groups
            updated = {parameter for group in groups for parameter in group["params"]}
            for bucket in self.setup.buckets:
                bucket.note_applied(updated)

    # The end of a step

    def _finish(self, *, late: bool = False) -> None:
        """Wait for the buckets, then settle the step."""
        if self.setup.find_unused_parameters:
            self.current.take_left()
        self._end(self.current.finish, late=late)

    def _give_up(self, *, late: bool = False) -> None:
        """Skip the step under way, and do what ranks do that finish it.

        Args:
            late: as for :meth:`Step.refuse`.

        Raises:
            RunError: the other ranks cannot be told.
        """
        objection = self._objection()
        if objection is not None:
            raise RunError(
                "forward or backward failed, and the ranks cannot skip this step: "
                f"{objection}"
            )
        if not self.current.forward_pending:
            self._enter()
        self._buffers.touched = True
        # Whoever asks, as an evaluation may: what is made here lasts.
        with torch.inference_mode(False), torch.no_grad():
            self._end(self.current.give_up, late=late)

    def _objection(self) -> str | None:
        """Return why the ranks cannot be told to skip this step; None: they can."""
        if self.setup.on_reduced is not None:
            return "on_reduced has begun to take its means: go on from a checkpoint"
        return self.current.objection()

    def _raise_what_ended_it(self) -> NoReturn:
        """Raise again what kept the step, which was complete, from being finished."""
        with self._explained():
            self.current.wait()
        raise RunError("the last step was interrupted: go on from a checkpoint")

    def _end(self, end: Callable[[], Refusal | None], *, late: bool = False) -> None:
        """Settle the step that ``end`` ends.

        Args:
            end: of the current step.
            late: as for :meth:`Step.refuse`.

        Raises:
            PeerError: a rank died or failed, and which one.
            CollectiveError: a collective failed.
        """
        with self._explained():
            self._settle(end(), late)

    def _settle(self, refusal: Refusal | None, late: bool) -> None:
        finished = self.current
        self.number += 1
        self.last_moments = finished.moments
        self._forward_failed = False
        self.awaits_update = refusal is None
        self.begin()
        self._align_buffers()
        self.last_skipped = refusal is not None
        if refusal is None:
            finished.settle()
        else:
            self._refuse(finished, refusal, late)
        if self.between is not None:
            self.between()

    def _refuse(self, step: Step, refusal: Refusal, late: bool) -> None:
        if self.rounds is None:
            what, outcome = "step", SKIPPED
        else:
            what, outcome = "round", UNDONE
        message = f"{what} {self.number - 1}: {step.refuse(refusal, late)}"
        self.skipped += 1
        if self.setup.on_nonfinite == "stop" and not refusal.backward_failed:
            raise NonFiniteError(
                f"{message}: look at data and loss, lower the learning rate, or skip "
                "such steps (on_nonfinite, --on-nonfinite)"
            )
        kept = not (refusal.backward_failed or self.setup.scaled)
        if kept and self.setup.on_nonfinite == "propagate":
            outcome = SPOILT
        logger.warning("%s: %s", message, outcome)

    def _align_buffers(self) -> None:
        self._buffers.align(joined=self._is_joined)

    @property
    def _is_joined(self) -> bool:
        """Whether ranks may have no batches left, and only shadow these steps."""
        return self._engine is not None and self._engine._join_config.enable

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say who is to blame for a collective that fails."""
        try:
            yield
        except CollectiveError as error:
            raise self._transport.explain(error) from None
