"""The engine: executes a plan behind ``loss.backward(); optimizer.step()``.

Each parameter has a hook that fires when its gradient is complete. The hook hands the
gradient to its bucket; once a bucket is complete and all earlier ones are launched, the
communication thread exchanges it while backward goes on, and makes every ``.grad`` in
it the mean over the ranks, as PyTorch's DistributedDataParallel (DDP) would. A callback
at the end of backward waits for the buckets.

Three parts: :mod:`~comm_plan.runtime.hooks` says when forward, gradients and optimizer
steps happen; :mod:`~comm_plan.runtime.step` holds the state of one step and takes it to
its end; this file sets both up, begins a new step after each, and is what users see.

What is like DDP: parameters and buffers start from rank 0's, buffers follow rank 0,
``no_sync`` accumulates locally, and with ``find_unused_parameters`` what it has left is
averaged at the end of the next step even if that does not use the parameter; gradients
are divided by the world size before they are summed.

A step is what ends once every parameter has its gradient: after one backward, or after
several that reach different parameters. A backward that reaches none, such as
``torch.autograd.grad``, is no step.

What differs from DDP: the model is not wrapped; buckets come from the plan and are
never rebuilt; a compressed bucket's mean is what was sent, the rest waits in residuals.
Buffers are brought from rank 0 at the end of a step instead of before the next forward,
so that an evaluation, on all ranks or on one alone, finds rank 0's. If the backward of
a rank fails and its loop goes on, all ranks skip that step; under a dense plan with
``on_nonfinite="skip"`` only, else the next forward is an error.

With ``local_steps`` in the plan no gradient is exchanged: :class:`Engine` counts the
steps of the ``optimizer``, and after so many the ranks average how far they have come
(:mod:`~comm_plan.runtime.rounds`). Between two such exchanges their models differ;
:meth:`Engine.synchronise` ends a round before its time, to evaluate or save.

Hooks of users on the same parameters see gradients before they are averaged.
``torch.compile`` of the whole model fires all hooks after backward: the result is
right, but nothing overlaps; :func:`comm_plan.compile_blocks` compiles block by block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from typing_extensions import Self

from comm_plan.errors import CollectiveError, InputError, NonFiniteError, RunError
from comm_plan.plans import Following, Plan, Replan
from comm_plan.plans.parameters import trainable
from comm_plan.runtime.agreement import (
    check_device,
    check_plan,
    check_ranks,
    check_settings,
    installed,
)
from comm_plan.runtime.bucket import BucketExchange, build_buckets
from comm_plan.runtime.buffers import Buffers
from comm_plan.runtime.communication import CommunicationThread
from comm_plan.runtime.flat import align_tensors, broadcast_tensors
from comm_plan.runtime.hooks import Callbacks, ParameterPlace, attach
from comm_plan.runtime.momentum import TakenMomentum, can_be_corrected, taken_over
from comm_plan.runtime.ownership import claim, close_owner_of, freed_with, release
from comm_plan.runtime.refusals import (
    check_final,
    check_never_refused,
    check_options,
)
from comm_plan.runtime.rounds import Rounds, rounds_of
from comm_plan.runtime.sides import change_of_sides, velocities
from comm_plan.runtime.state import EngineState, Remembered, gathered, share_of
from comm_plan.runtime.step import (
    OnNonFinite,
    OnReduced,
    Refusal,
    SecondMoments,
    Setup,
    Step,
)
from comm_plan.runtime.timing import Moments
from comm_plan.runtime.uneven import ShadowHook
from comm_plan.transports.allocator import keep_memory
from comm_plan.transports.base import Transport

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

logger = logging.getLogger("comm_plan")


class Engine(Joinable):
    """A plan in execution for one model; made by :func:`comm_plan.parallelize`.

    Args:
        model: the model; it is changed in place (hooks, parameters of rank 0).
        plan: the plan for it.
        transport: the ranks, which must last as long as the engine. It talks on them
            between backwards, where the program calls it, and in backward on a
            duplicate.
        seed: of the random numbers of stochastic compressors; equal on all ranks.
        on_nonfinite: what to do when a rank's gradient holds inf or NaN; residuals
            never see them. ``propagate``: fill every ``.grad`` with NaN on all ranks,
            so that a ``GradScaler`` skips the step everywhere. ``skip``: leave every
            ``.grad`` None on all ranks, so that ``optimizer.step()`` changes nothing;
            with ``grad_scaler`` NaN, of which the scaler makes the same. ``stop``:
            raise :class:`NonFiniteError` on all ranks.
        find_unused_parameters: parameters may stay without gradient; one that no rank
            used keeps its ``.grad`` as it is, and the compressor what it remembers
            of it. If False, a gradient that is missing when the next step begins, or
            the optimizer updates, is an error that names the parameter.
        broadcast_buffers: buffers follow rank 0 after each step, and, but within
            ``Join``, before a training forward that follows another without a step
            between them: those of modules that have some when the engine is made.
        gradient_as_bucket_view: dense buckets hand out parts of themselves as ``.grad``
            instead of copies; a gradient kept from an earlier step then changes with
            the next. Without effect with ``find_unused_parameters``.
        second_moments: where VGC gets per-sample second moments from; None: exact.
        grad_scaler: scales the loss; residuals are rescaled when its scale changes.
            None: nothing does, or :meth:`rescale` is called.
        optimizer: what updates the parameters; plans with momentum correction need it,
            as the engine applies its momentum (:mod:`~comm_plan.runtime.momentum`), and
            plans with local steps, as it counts its steps.

    Attributes:
        step: how many steps were finished, skipped ones too; of local steps how many
            rounds.
        skipped_steps: how many of them every rank skipped, for inf or NaN.
        last_step_skipped: whether the last one was.
        plan: the plan in execution.
        last_moments: when what happened in the last step; None before the first.
        replans: every change of the plan so far.
        following: what came of looking for reasons to change it; None: nobody does.
        between_steps: is called on all ranks once the means of a step are there,
            before the optimizer takes them; None: nothing is.

    Raises:
        InputError: no such ``on_nonfinite``, a seed below 0, the model is wrapped in
            DDP or sharded, shares some parameters with one that has an engine, or the
            plan corrects momentum and there is no SGD ``optimizer``, or it has local
            steps and there is none at all, or a ``grad_scaler``.
        MismatchError: the plan does not fit the model or the run, ranks differ, or the
            model is not where the transport's tensors live.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        transport: Transport,
        *,
        seed: int = 0,
        on_nonfinite: OnNonFinite = "propagate",
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = False,
        second_moments: SecondMoments | None = None,
        grad_scaler: torch.amp.GradScaler | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        super().__init__()
        check_options(model, on_nonfinite, seed)
        check_device(model, transport)
        check_ranks(plan, model, transport)
        check_plan(plan, model, transport.world_size)
        check_settings(
            {
                **installed(),
                "seed": seed,
                "on_nonfinite": on_nonfinite,
                "find_unused_parameters": find_unused_parameters,
                "broadcast_buffers": broadcast_buffers,
            },
            transport,
        )
        close_owner_of(model)
        keep_memory(transport.device)
        self.model = model
        self.plan = plan
        self.step = 0
        self.skipped_steps = 0
        self.last_step_skipped = False
        self.last_moments: Moments | None = None
        self.replans: list[Replan] = []
        self.following: Following | None = None
        self.between_steps: Callable[[], None] | None = None
        self._listening = True
        self._closed = False
        self._forward_failed = False
        self._share = gradient_as_bucket_view and not find_unused_parameters
        self._stepped_since_update = False
        self._warned = False
        self._density_floor = 0.0
        self._seed = seed
        self._given_moments = second_moments
        self._scaler = grad_scaler
        self._scale = self._scale_now()
        self._optimizer = optimizer
        self._momentum: TakenMomentum | None = None
        self._rounds: Rounds | None = None
        self._executing = ExitStack()
        self._transport = transport
        self._buffers = Buffers(model if broadcast_buffers else nn.Module(), transport)
        with ExitStack() as opened:
            channel = opened.enter_context(closing(transport.duplicate()))
            if channel.device.type == "cuda":
                channel.barrier()  # NCCL connects now, not in the midst of backward
            thread = CommunicationThread(transport.device)
            opened.callback(thread.close)
            self._setup = Setup(
                buckets=(),
                thread=thread,
                channel=channel,
                on_nonfinite=on_nonfinite,
                find_unused_parameters=find_unused_parameters,
                second_moments=None,
                scaled=grad_scaler is not None and grad_scaler.is_enabled(),
            )
            self._execute(plan)
            if self._momentum is not None:
                own = velocities(model, self.remembered())
                self._momentum.before_compression = own.keys()
            opened.callback(self._stop)
            align_tensors(transport, [*model.parameters(), *model.buffers()])
            opened.pop_all()
        claim(self)
        self._freed = freed_with(self, channel)

    @property
    def buckets(self) -> tuple[BucketExchange, ...]:
        """The buckets, in launch order."""
        return self._setup.buckets

    @property
    def transport(self) -> Transport:
        """The ranks; for calls that all of them make between two steps."""
        return self._transport

    def swap(self, plan: Plan, replan: Replan) -> None:
        """Go on by another plan; residuals and momentum move with their parameters.

        Every rank calls it between the same two steps.

        Args:
            plan: for the same model and ranks.
            replan: why.

        Raises:
            InputError: as for :class:`Engine`, of the optimizer.
            MismatchError: the plan does not fit the model or the run, or ranks differ.
                Then, as after any error, the engine goes on by the plan that it has.
        """
        self._give_up_failed()
        self.synchronise()
        check_ranks(plan, self.model, self._transport)
        check_plan(plan, self.model, self._transport.world_size)
        if self._setup.on_reduced is not None:
            check_never_refused(plan)
        self._settle_momentum()
        if self._given_moments is not None:
            self._given_moments.reset()
        state = self.state_dict()
        self._execute(plan)
        self.load_state_dict(state)
        self.replans.append(replan)

    def on_reduced(self, callback: OnReduced | None) -> None:
        """Call ``callback`` with a bucket's parameters once their means are there.

        Backward goes on meanwhile: an optimizer of these parameters may step, and free
        their ``.grad``. It is called on the communication thread (on CUDA, on its
        stream), in plan order; what it raises, backward raises.

        Args:
            callback: takes the place of an earlier one; None: nothing is called.

        Raises:
            InputError: a step could still be refused, or a mean still change, after
                the callback.
        """
        if callback is not None:
            check_final(self._setup, self._scaler)
            check_never_refused(self.plan)
        self._require_finished()
        self._setup = replace(self._setup, on_reduced=callback)
        self._begin_step()

    def synchronise(self) -> None:
        """End a round of local steps now; every rank calls it after the same step.

        Then all ranks have the same model: call it before it is evaluated or saved, and
        at the end. Where no local step was made since the last time, or the plan has
        none, there is nothing to do.

        Raises:
            NonFiniteError, PeerError, CollectiveError: as at the end of any step.
        """
        rounds = self._rounds
        if rounds is None or not rounds.taken:
            return
        moments = self._current.moments
        moments.backward = moments.now()
        rounds.measure()
        for place in _places(self.plan):
            self._current.add(place, rounds.begins[place.name])
        self._buffers.touched = True
        self._end_step(self._current.finish)
        rounds.end()
        self._stepped_since_update = False  # that was the update

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within, backward only accumulates locally; residuals do not move."""
        before, self._listening = self._listening, False
        try:
            yield
        finally:
            self._listening = before

    def remembered(self) -> Remembered:
        """Return what this rank remembers from step to step: residuals and the like."""
        tensors: Remembered = {}
        for bucket in self.buckets:
            tensors.update(bucket.state())
        if self._rounds is not None:
            for name, quantities in self._rounds.state().items():
                tensors.setdefault(name, {}).update(quantities)
        return tensors

    def state_dict(self) -> EngineState:
        """Return what an exact resume needs, with this rank's part of it.

        Raises:
            RunError: in the middle of a round of local steps.
        """
        if self._rounds is not None and self._rounds.taken:
            raise RunError(
                "in the middle of a round of local steps the ranks' models differ: "
                "call engine.synchronise() on all ranks first"
            )
        ranks = self._transport
        return {
            "step": self.step,
            "skipped_steps": self.skipped_steps,
            "world_size": ranks.world_size,
            "scale": self._scale,
            "ranks": {str(ranks.rank): self.remembered()},
        }

    def gathered_state(self, *, keep: bool = True) -> EngineState:
        """Return :meth:`state_dict` with the parts of all ranks; all call it.

        They are in main memory, as many times the model as there are ranks: let only
        the rank that writes them ``keep`` them; the others get their own.
        """
        return gathered(self.state_dict(), self._transport, keep=keep)

    def load_state_dict(self, state: EngineState) -> None:
        """Take over :meth:`state_dict`, also from a run under another plan.

        All ranks call it, after ``optimizer.load_state_dict``: where only one of the
        two plans corrects momentum, it changes sides. From a run of another number of
        ranks it takes the parts of all of them (:meth:`gathered_state`): every rank
        then gets their mean.

        Raises:
            MismatchError: parts that are needed are not there.
        """
        remembered = share_of(
            state["ranks"],
            state["world_size"],
            self._transport.rank,
            self._transport.world_size,
        )
        self.step = state["step"]
        self.skipped_steps = state["skipped_steps"]
        self._scale = state["scale"]
        for bucket in self.buckets:
            bucket.load_state(remembered)
        if self._rounds is not None:
            self._rounds.load_state(remembered)
        self._change_sides(velocities(self.model, remembered))
        self._begin_step()

    def rescale(self, factor: float) -> None:
        """Multiply all residuals by ``factor``; call it when the loss scale changes.

        Only without ``grad_scaler``. The scale itself stays unknown then: change with
        a scale of 1 between a plan that corrects momentum and one that does not.
        """
        self._stepped_since_update = False  # it changes after the update, or instead
        for bucket in self.buckets:
            bucket.rescale(factor)

    def skip_step(self) -> None:
        """Skip the step under way, on all ranks: for who catches what it raised.

        What is left of the iteration follows, as on the other ranks: the update by the
        optimizer, the scaler's and the scheduler's.

        A backward that failed half-way is noticed without it when the next forward
        begins. A forward is not, nor is a backward that failed before it came to the
        model: the next one, maybe of a smaller batch, is taken for it. Of local steps
        no other rank waits for any: there is nothing to do.

        Raises:
            RunError: the other ranks cannot be told, or have finished the step, as has
                this one.
        """
        if self._rounds is not None:  # no other rank waits for it
            return
        self._follow_scale()
        if self._stepped_since_update and not self._current.has_begun:
            raise RunError(
                "the step is over, and its means are in .grad: call optimizer.step() "
                "again, or go on from a checkpoint"
            )
        self._give_up()

    def set_density_floor(self, density_floor: float) -> None:
        """Let sparse methods send at least this share of each tensor from now on."""
        self._give_up_failed()
        self._density_floor = density_floor
        self._begin_step()

    def close(self) -> None:
        """Remove all hooks and end the communication thread.

        Raises:
            RunError: an exchange asks for it, which could not end.
        """
        if self._closed:
            return
        if self._setup.thread.is_current:
            raise RunError(
                "the engine was closed in the middle of an exchange, by on_reduced or "
                "by a signal's handler: let these raise or set a flag, and close after "
                "the step"
            )
        self._closed = True
        if self._rounds is not None and self._rounds.taken:
            logger.warning(
                "closed in the middle of a round of local steps, where the ranks' "
                "models differ: call engine.synchronise() after the last step"
            )
        release(self)
        self._freed.detach()
        self._stop()
        if self._given_moments is not None:
            self._given_moments.remove()
        with closing(self._setup.channel):
            self._setup.thread.close()

    def __enter__(self) -> Self:
        """Return the engine; it is closed at the end of the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the engine."""
        self.close()

    # Uneven numbers of batches: torch.distributed.algorithms.Join

    def join_hook(self, **options: object) -> JoinHook:
        """Return what a rank without batches does; ``options`` mean nothing here.

        Raises:
            InputError: the plan has local steps, of which all ranks make as many.
        """
        if self._rounds is not None:
            raise InputError(
                "Join: with local steps all ranks need as many batches: leave out "
                "those that only some have"
            )
        return ShadowHook(self)

    @property
    def join_device(self) -> torch.device:
        """Where the ranks tell each other who has batches left."""
        return self._transport.device

    @property
    def join_process_group(self) -> ProcessGroup | None:
        """Through which group they do.

        Raises:
            InputError: the ranks are not those of torch.distributed.
        """
        return self._transport.process_group

    def shadow_step(self) -> None:
        """Take part in a step of other ranks, with gradients of zero."""
        self._settle_momentum()
        self._follow_scale()
        self._buffers.shadowing = self._buffers.touched = True
        self._end_step(self._current.finish)
        self._stepped_since_update = False  # no update follows

    def take_over(self, is_last: bool) -> None:
        """Take over parameters and buffers of the highest rank that ``is_last``."""
        ranks = self._transport.gather_objects(is_last)
        root = max(rank for rank, last in enumerate(ranks) if last)
        tensors = [*self.model.parameters(), *self.model.buffers()]
        broadcast_tensors(self._transport, tensors, root)
        self._buffers.shadowing = False

    # From plan to plan

    def _execute(self, plan: Plan) -> None:
        """Hook the model for ``plan``, and no longer for the one before.

        If that fails, nothing has changed.
        """
        parameters = trainable(self.model)
        taken = self._momentum if self.plan.momentum_correction else None
        with ExitStack() as undo, ExitStack() as begun:
            rounds = rounds_of(plan, parameters, self._optimizer, self._scaler)
            if rounds is not None:
                begun.enter_context(rounds.counted(self.synchronise))
            momentum = taken_over(plan, self._optimizer, taken)
            if momentum is not None and momentum is not taken:
                undo.callback(momentum.close)
            buckets = build_buckets(
                plan,
                parameters if rounds is None else rounds.begins,
                self._transport,
                self._seed,
                self._share,
                None if momentum is None else momentum.of,
            )
            moments = self._given_moments
            if moments is None:
                moments = _exact_second_moments(self.model, buckets)
                if moments is not None:
                    begun.callback(moments.remove)
            places = {parameters[place.name]: place for place in _places(plan)}
            begun.enter_context(attach(self.model, places, self._callbacks()))
            self._executing.close()
            self._executing = begun.pop_all()
            undo.pop_all()
        self.plan = plan
        self._momentum = momentum or self._momentum
        self._rounds = rounds
        self._setup = replace(self._setup, buckets=buckets, second_moments=moments)
        self._begin_step()

    def _stop(self) -> None:
        """Remove all hooks but those that were given."""
        self._executing.close()
        self._settle_momentum()
        if self._momentum is not None:
            self._momentum.close()

    def _change_sides(self, before: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """Bring momentum to where the plan applies it, now or after a step to come.

        Args:
            before: this rank's velocities under the last plan, flat.
        """
        remembered = self.remembered()
        after = velocities(self.model, remembered)
        if self._momentum is None and before.keys() - after.keys():
            self._momentum = self._momentum_to_give_back()
        if self._momentum is None:
            return
        self._momentum.after_step(
            change_of_sides(
                self.model,
                self._momentum,
                before,
                after,
                remembered,
                self._transport,
                self._scale,
            )
        )
        if not self._stepped_since_update:
            self._settle_momentum()

    def _momentum_to_give_back(self) -> TakenMomentum | None:
        """Return that of the optimizer, whose own it will be; None: it cannot be."""
        if self._optimizer is not None and can_be_corrected(self._optimizer):
            return TakenMomentum(self._optimizer)
        if self._transport.rank == 0:
            logger.warning(
                "the state holds corrected momentum, which is lost: the plan corrects "
                "none, and the engine has no SGD optimizer with momentum to take it"
            )
        return None

    def _settle_momentum(self) -> None:
        """Let momentum change sides, even if the optimizer has not taken its means."""
        if self._momentum is None:
            return
        self._momentum.settle()
        if not self.plan.momentum_correction:
            self._momentum.close()
            self._momentum = None

    # What the hooks call

    def _callbacks(self) -> Callbacks:
        return Callbacks(
            listening=self._is_listening,
            on_any_forward=self._give_up_failed,
            on_forward=self._on_forward,
            on_forward_failed=self._on_forward_failed,
            on_local_forward=self._on_local_forward,
            on_backward=self._on_backward,
            on_backward_lost=self._on_backward_lost,
            on_gradient=self._on_gradient,
            on_backward_end=self._on_backward_end,
            on_optimizer=self._on_optimizer,
            on_updated=self._on_updated,
        )

    def _is_listening(self) -> bool:
        """Return whether the next backward is a step; DDP's switch is heeded too."""
        if self._rounds is not None:
            return False
        wanted: bool = vars(self.model).get("require_backward_grad_sync", True)
        return self._listening and wanted

    def _on_forward(self) -> None:
        """Begin a step; align buffers with rank 0 if another forward was before."""
        self._require_finished()
        self._enter_step()
        self._current.moments.begun = self._current.moments.now()
        repeated, self._forward_failed = self._forward_failed, False
        shadowed = self._join_config.enable  # by ranks that align once a step
        if not repeated and not shadowed:
            with self._explained():
                self._align_buffers()
        self._buffers.touched = True

    def _on_local_forward(self) -> None:
        self._settle_momentum()
        if self._rounds is not None and self._current.moments.begun is None:
            self._current.moments.begun = self._current.moments.now()

    def _on_forward_failed(self) -> None:
        """Take the next forward for this one, which the other ranks do not repeat."""
        self._forward_failed = True

    def _enter_step(self) -> None:
        """Do what has to be done before the first gradient of a step."""
        self._settle_momentum()
        self._follow_scale()
        if self._stepped_since_update:
            self._warn_of_dropped_means()
        if not self._current.forward_pending:
            Join.notify_join_context(self)
        self._current.forward_pending = True

    def _warn_of_dropped_means(self) -> None:
        """Say once that what a loop has thrown away comes back out of residuals."""
        remembers = any(bucket.compressor.state for bucket in self.buckets)
        if self._warned or not remembers:
            return
        if all(parameter.grad is None for parameter in self.model.parameters()):
            self._warned = True
            logger.warning(
                "step %d: no torch.optim.Optimizer has taken the means of the step "
                "before; if they were thrown away, what a compressor held back of "
                "them still goes with later ones: run such a backward in "
                "engine.no_sync(), or freeze the parameters meanwhile",
                self.step,
            )

    def _on_backward_lost(self) -> None:
        """Give up a backward that failed, unless a forward has done so.

        Raises:
            RunError: none has.
        """
        if self._current.graph_task is not None:
            self._give_up_failed()
            raise RunError(
                "an earlier backward failed, and what is left of it may be in the "
                "gradients of this one: call engine.skip_step() where the error is "
                "caught"
            )

    def _on_backward(self, graph_task: int) -> bool:
        first = self._current.graph_task is None
        if first:
            self._require_applied()
            self._current.graph_task = graph_task
            self._current.moments.backward = self._current.moments.now()
        return first

    def _require_applied(self) -> None:
        """Check that no means wait in ``.grad`` that momentum has gone into already.

        A lone gradient may be the one that begins this backward.

        Raises:
            RunError: some do, and momentum would go into them again.
        """
        if not (self.plan.momentum_correction and self._stepped_since_update):
            return
        if sum(p.grad is not None for p in self.model.parameters()) > 1:
            raise RunError(
                "the means of the step before are still in .grad, and momentum has "
                "gone into them: step the optimizer before the next backward, or "
                "accumulate in engine.no_sync()"
            )

    def _on_gradient(self, place: ParameterPlace, parameter: nn.Parameter) -> None:
        if not self._current.forward_pending:  # of a part of the model, or in eval()
            self._enter_step()
            self._buffers.touched = True
        self._current.add(place, parameter)

    def _on_backward_end(self) -> None:
        """Finish the step unless gradients are missing that may still come."""
        self._current.graph_task = None
        if not self._current.received:
            return
        if self._setup.find_unused_parameters or self._current.is_complete:
            self._finish_step()

    def _on_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Take part in the step even if this rank's loss used no parameter."""
        if self._setup.thread.is_current:  # in on_reduced
            return
        if self._momentum is not None and self.plan.momentum_correction:
            self._momentum.require(optimizer)
        if self._rounds is not None:
            self._rounds.require(optimizer)
        self._require_finished()
        pending = self._current.forward_pending and not self._stepped_since_update
        if pending and self._setup.find_unused_parameters:
            self._finish_step(late=True)

    def _on_updated(self, optimizer: torch.optim.Optimizer) -> None:
        self._stepped_since_update = False
        if self._setup.find_unused_parameters:
            groups = optimizer.param_groups
            updated = {parameter for group in groups for parameter in group["params"]}
            for bucket in self.buckets:
                bucket.note_applied(updated)

    def _follow_scale(self) -> None:
        """Rescale residuals if the scale of the loss has changed."""
        before, self._scale = self._scale, self._scale_now()
        if self._scale != before:
            self.rescale(self._scale / before)

    def _scale_now(self) -> float:
        """Return what the scaler multiplies the loss by; 1: there is none."""
        return 1.0 if self._scaler is None else self._scaler.get_scale()

    # From step to step

    def _begin_step(self) -> None:
        self._current = Step(self._setup, self.step, self._density_floor)

    def _require_finished(self) -> None:
        """Go on only if no step has begun that is not finished.

        Raises:
            RunError: parameters got no gradient, or a backward failed and the step
                cannot be skipped.
            CollectiveError: its exchange failed.
        """
        self._give_up_failed()
        if not self._current.received:
            return
        if self._setup.find_unused_parameters or self._current.is_complete:
            self._raise_what_ended_it()
        missing = self._current.missing()
        if self._objection() is None:
            self._give_up(late=True)
        names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise RunError(
            f"{len(missing)} parameters got no gradient in this step: {names}: "
            "if that is meant, pass find_unused_parameters=True (on the command "
            "line: --find-unused-parameters)"
        )

    def _raise_what_ended_it(self) -> NoReturn:
        """Raise again what kept the step, which was complete, from being finished."""
        with self._explained():
            self._current.wait()
        raise RunError("the last step was interrupted: go on from a checkpoint")

    def _give_up_failed(self) -> None:
        """Skip the step whose backward failed, if one did; not called in backward.

        Raises:
            RunError: it cannot be skipped.
        """
        if self._current.graph_task is not None:
            self._give_up(late=True)

    def _give_up(self, *, late: bool = False) -> None:
        """Skip the step under way, and do what ranks do that finish it.

        Args:
            late: as for :meth:`Step.refuse`.

        Raises:
            RunError: the other ranks cannot be told.
        """
        self._check_refusable()
        if not self._current.forward_pending:
            self._enter_step()
        self._buffers.touched = True
        # Whoever asks, as an evaluation may: what is made here lasts.
        with torch.inference_mode(False), torch.no_grad():
            self._end_step(self._current.give_up, late=late)

    def _check_refusable(self) -> None:
        """Check that the ranks can be told to skip this step.

        Raises:
            RunError: they cannot, and why.
        """
        objection = self._objection()
        if objection is not None:
            raise RunError(
                "forward or backward failed, and the ranks cannot skip this step: "
                f"{objection}"
            )

    def _objection(self) -> str | None:
        """Return why they cannot; None: they can."""
        if self._setup.on_reduced is not None:
            return "on_reduced has begun to take its means: go on from a checkpoint"
        return self._current.objection()

    def _finish_step(self, *, late: bool = False) -> None:
        """Wait for the buckets, then settle the step."""
        if self._setup.find_unused_parameters:
            self._current.take_left()
        self._end_step(self._current.finish, late=late)

    def _end_step(
        self, end: Callable[[], Refusal | None], *, late: bool = False
    ) -> None:
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
        finished = self._current
        self.step += 1
        self.last_moments = finished.moments
        self._forward_failed = False
        self._stepped_since_update = refusal is None
        self._begin_step()
        self._align_buffers()
        self.last_step_skipped = refusal is not None
        if refusal is None:
            finished.settle()
        else:
            self._skip(finished, refusal, late)
        if self.between_steps is not None:
            self.between_steps()

    def _align_buffers(self) -> None:
        self._buffers.align(joined=self._join_config.enable)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say who is to blame for a collective that fails."""
        try:
            yield
        except CollectiveError as error:
            raise self._transport.explain(error) from None

    def _skip(self, step: Step, refusal: Refusal, late: bool) -> None:
        message = step.refuse(refusal, late)
        self.skipped_steps += 1
        if self._setup.on_nonfinite == "stop" and not refusal.backward_failed:
            raise NonFiniteError(
                f"{message}: look at data and loss, lower the learning rate, or skip "
                "such steps (on_nonfinite, --on-nonfinite)"
            )
        logger.warning("%s: the step is skipped on all ranks", message)


def _places(plan: Plan) -> Iterator[ParameterPlace]:
    for number, bucket in enumerate(plan.buckets):
        for index, name in enumerate(bucket.tensors):
            yield ParameterPlace(name, number, index)


def _exact_second_moments(
    model: nn.Module, buckets: Sequence[BucketExchange]
) -> SecondMoments | None:
    """Return exact moments of the parameters that want any; None if none does."""
    wanting = [b for b in buckets if b.compressor.needs_second_moments]
    if not wanting:
        return None
    from comm_plan.runtime.second_moments import ExactSecondMoments

    parameters = [p for bucket in wanting for p in bucket.parameters]
    return ExactSecondMoments(model, parameters)
