"""The engine: executes a plan behind ``loss.backward(); optimizer.step()``.

Each parameter has a hook that fires when its gradient is complete. The hook hands the
gradient to its bucket; once a bucket is complete and all earlier ones are launched, the
communication thread exchanges it while backward goes on, and makes every ``.grad`` in
it the mean over the ranks, as PyTorch's DistributedDataParallel (DDP) would. A callback
at the end of backward waits for the buckets.

Four parts: :mod:`~comm_plan.runtime.hooks` says when forward, gradients and optimizer
steps happen; :mod:`~comm_plan.runtime.step` holds the state of one step and takes it to
its end; :mod:`~comm_plan.runtime.steps` begins and ends one after the other; this file
sets them up, goes from plan to plan, and is what users see.

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
``on_nonfinite="skip"`` or ``find_unused_parameters`` only, else the next forward is an
error.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.algorithms.join import Joinable, JoinHook
from typing_extensions import Self

from comm_plan.errors import InputError, RunError
from comm_plan.plans import Following, Plan, Replan
from comm_plan.plans.parameters import trainable
from comm_plan.runtime.agreement import (
    check_buffers,
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
from comm_plan.runtime.hooks import ParameterPlace, attach, attach_to_optimizers
from comm_plan.runtime.ownership import (
    LeftOut,
    claim,
    freed_with,
    owners_of,
    release,
)
from comm_plan.runtime.refusals import (
    check_final,
    check_never_refused,
    check_options,
)
from comm_plan.runtime.rounds import rounds_of
from comm_plan.runtime.sides import EngineMomentum
from comm_plan.runtime.state import (
    EngineState,
    Remembered,
    gathered,
    share_of,
    without_residuals,
)
from comm_plan.runtime.step import OnNonFinite, OnReduced, SecondMoments, Setup
from comm_plan.runtime.steps import Steps
from comm_plan.runtime.timing import Moments
from comm_plan.runtime.uneven import ShadowHook
from comm_plan.transports.allocator import keep_memory
from comm_plan.transports.base import Transport

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

logger = logging.getLogger("comm_plan")

_lasting = torch.inference_mode(False)
"""For calls that an evaluation may make in inference mode: what they make lasts, and
tensors of that mode could not be changed in the next step."""


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
        broadcast_buffers: buffers start from rank 0's, and follow rank 0 after each
            step, and, but within ``Join``, before a training forward that follows
            another without a step between them: those of modules that have some when
            the engine is made. If False, each rank keeps its own.
        gradient_as_bucket_view: dense buckets hand out parts of themselves as ``.grad``
            instead of copies; a gradient kept from an earlier step then changes with
            the next. Without effect with ``find_unused_parameters``.
        second_moments: where VGC gets per-sample second moments from; None: exact.
        grad_scaler: scales the loss; residuals are rescaled when its scale changes,
            and a plan's ``tau`` and ``clip_norm`` are of gradients without it. None:
            nothing does, or :meth:`rescale` is called.
        optimizer: what updates the parameters; plans with momentum correction need it,
            as the engine applies its momentum (:mod:`~comm_plan.runtime.momentum`), and
            plans with local steps, as it counts its steps.

    Attributes:
        model: the model.
        plan: the plan in execution.
        replans: every change of the plan so far.
        following: what came of looking for reasons to change it; None: nobody does.

    Raises:
        InputError: no such ``on_nonfinite``, a seed below 0, the model is wrapped in
            DDP or sharded, a parameter, or a buffer that is to follow rank 0, has no
            shape yet or is sparse, the model shares some parameters with one that has
            an engine, or the plan corrects momentum and there is no SGD ``optimizer``,
            or it has local steps and there is none at all, or a ``grad_scaler``.
        MismatchError: the plan does not fit the model or the run, ranks differ, or the
            model is not where the transport's tensors live.
    """

    @_lasting
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
        if broadcast_buffers:
            check_buffers(model, transport)
        former = owners_of(model)
        keep_memory(transport.device)
        self.model = model
        self.plan = plan
        self.replans: list[Replan] = []
        self.following: Following | None = None
        self._closed = False
        self._share = gradient_as_bucket_view and not find_unused_parameters
        self._seed = seed
        self._given_moments = second_moments
        self._scaler = grad_scaler
        self._optimizer = optimizer
        self._executing = ExitStack()
        self._transport = transport
        self._buffers = Buffers(model if broadcast_buffers else nn.Module(), transport)
        self._momentum = EngineMomentum(model, optimizer, transport)
        with ExitStack() as opened:
            channel = opened.enter_context(closing(transport.duplicate()))
            if channel.device.type == "cuda":
                channel.barrier()  # NCCL connects now, not in the midst of backward
            thread = CommunicationThread(transport.device)
            opened.callback(thread.close)
            setup = Setup(
                buckets=(),
                thread=thread,
                channel=channel,
                on_nonfinite=on_nonfinite,
                find_unused_parameters=find_unused_parameters,
                second_moments=None,
                scaled=grad_scaler is not None and grad_scaler.is_enabled(),
            )
            self._steps = Steps(
                self,
                model,
                transport,
                setup,
                buffers=self._buffers,
                momentum=self._momentum,
                scaler=grad_scaler,
            )
            self._execute(plan)
            self._momentum.begin(self.remembered(), self._steps.scale)
            self._on_optimizers = attach_to_optimizers(
                frozenset(trainable(model).values()),
                before_any=LeftOut(model).check,
                before=self._steps.on_optimizer,
                after=self._steps.on_updated,
            )
            opened.callback(self._stop)
            align_tensors(transport, [*model.parameters(), *self._buffers.tensors])
            opened.pop_all()
        for engine in former:  # which goes on if this one cannot be
            engine.close()
        claim(self)
        self._freed = freed_with(self, channel)

    @property
    def step(self) -> int:
        """How many steps were finished, skipped ones too; of local steps: rounds."""
        return self._steps.number

    @property
    def skipped_steps(self) -> int:
        """How many of them had no means on any rank.

        For inf or NaN, for a backward that failed, or by :meth:`skip_step`.
        """
        return self._steps.skipped

    @property
    def last_step_skipped(self) -> bool:
        """Whether the last one had none."""
        return self._steps.last_skipped

    @property
    def last_moments(self) -> Moments | None:
        """When what happened in the last step; None before the first."""
        return self._steps.last_moments

    @property
    def cuts_batches(self) -> bool:
        """Whether second moments come from parts of each batch, one by one."""
        return self._steps.setup.cuts_batches

    @property
    def buckets(self) -> tuple[BucketExchange, ...]:
        """The buckets, in launch order."""
        return self._steps.setup.buckets

    @property
    def transport(self) -> Transport:
        """The ranks; for calls that all of them make between two steps."""
        return self._transport

    @_lasting
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
        self._steps.give_up_failed()
        self.synchronise()
        check_ranks(plan, self.model, self._transport)
        check_plan(plan, self.model, self._transport.world_size)
        if self._steps.setup.on_reduced is not None:
            check_never_refused(plan)
        self._momentum.settle()
        if self._given_moments is not None:
            self._given_moments.reset()
        state = self.state_dict()
        self._execute(plan)
        self.load_state_dict(state)
        self.replans.append(replan)

    @_lasting
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
            check_final(self._steps.setup, self._scaler)
            check_never_refused(self.plan)
        self._steps.require_finished()
        self._steps.begin(on_reduced=callback)

    def between_steps(self, callback: Callable[[], None] | None) -> None:
        """Call ``callback`` on all ranks between the means of a step and the update.

        Args:
            callback: takes the place of an earlier one; None: nothing is called.
        """
        self._steps.between = callback

    @_lasting
    def synchronise(self) -> None:
        """End a round of local steps now; every rank calls it after the same step.

        Then all ranks have the same model: call it before it is evaluated or saved, and
        at the end. Where no local step was made since the last time, or the plan has
        none, there is nothing to do.

        Raises:
            NonFiniteError, PeerError, CollectiveError: as at the end of any step.
        """
        rounds, step = self._steps.rounds, self._steps.current
        if rounds is None or not rounds.taken:
            return
        step.moments.resume()
        step.moments.backward = step.moments.now()
        rounds.measure()
        for place in _places(self.plan):
            step.add(place, rounds.begins[place.name])
        self._steps.end_without_update()
        rounds.end(undone=self.last_step_skipped)  # which is the update

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within, backward only accumulates locally; residuals do not move."""
        with self._listening(False):
            yield

    @contextmanager
    def sync_again(self) -> Iterator[None]:
        """Within, backward is a step even where :meth:`no_sync` is around it."""
        with self._listening(True):
            yield

    def remembered(self) -> Remembered:
        """Return what this rank remembers from step to step: residuals and the like."""
        tensors: Remembered = {}
        for bucket in self.buckets:
            tensors.update(bucket.state())
        if self._steps.rounds is not None:
            for name, quantities in self._steps.rounds.state().items():
                tensors.setdefault(name, {}).update(quantities)
        return tensors

    @_lasting
    def state_dict(self) -> EngineState:
        """Return what an exact resume needs, with this rank's part of it.

        Raises:
            RunError: in the middle of a round of local steps.
        """
        if self._in_a_round:
            raise RunError(
                "in the middle of a round of local steps the ranks' models differ: "
                "call engine.synchronise() on all ranks first"
            )
        if not self._steps.awaits_update:
            self._momentum.settle()
        ranks = self._transport
        return {
            "step": self.step,
            "skipped_steps": self.skipped_steps,
            "world_size": ranks.world_size,
            "scale": self._steps.scale,
            "of_rounds": self._steps.rounds is not None,
            "ranks": {str(ranks.rank): self.remembered()},
        }

    def gathered_state(self, *, keep: bool = True) -> EngineState:
        """Return :meth:`state_dict` with the parts of all ranks; all call it.

        They are in main memory, as many times the model as there are ranks: let only
        the rank that writes them ``keep`` them; the others get their own.
        """
        return gathered(self.state_dict(), self._transport, keep=keep)

    @_lasting
    def load_state_dict(self, state: EngineState) -> None:
        """Take over :meth:`state_dict`, also from a run under another plan.

        All ranks call it, after ``optimizer.load_state_dict``: where only one of the
        two plans corrects momentum, it changes sides, and where only one has local
        steps, what waits in residuals is dropped. From a run of another number of ranks
        it takes the parts of all of them (:meth:`gathered_state`): every rank then gets
        their mean.

        Raises:
            MismatchError: parts that are needed are not there.
        """
        remembered = share_of(
            state["ranks"],
            state["world_size"],
            self._transport.rank,
            self._transport.world_size,
        )
        if state["of_rounds"] != (self._steps.rounds is not None):
            remembered, held = without_residuals(remembered)
            if held and self._transport.rank == 0:
                logger.warning(
                    "what a compressor held back is dropped: gradients are no moves of "
                    "parameters, which local steps send"
                )
        self._steps.number = state["step"]
        self._steps.skipped = state["skipped_steps"]
        self._steps.scale = state["scale"]
        for bucket in self.buckets:
            bucket.load_state(remembered)
        if self._steps.rounds is not None:
            self._steps.rounds.load_state(remembered)
        self._momentum.change_sides(
            remembered,
            self.remembered(),
            self._steps.scale,
            now=not self._steps.awaits_update,
        )
        self._steps.begin()

    def rescale(self, factor: float) -> None:
        """Multiply all residuals by ``factor``; call it when the loss scale changes.

        Only without ``grad_scaler``. The scale itself stays unknown then: change with
        a scale of 1 between a plan that corrects momentum and one that does not, and
        take ``tau`` and ``clip_norm`` as those of scaled gradients.
        """
        self._steps.rescale(factor)

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
        if self._steps.rounds is None:  # else no other rank waits for it
            self._steps.skip()

    @_lasting
    def set_density_floor(self, density_floor: float) -> None:
        """Let sparse methods send at least this share of each tensor from now on."""
        self._steps.give_up_failed()
        self._steps.density_floor = density_floor
        self._steps.begin()

    def close(self) -> None:
        """Remove all hooks and end the communication thread.

        Raises:
            RunError: an exchange asks for it, which could not end.
        """
        if self._closed:
            return
        setup = self._steps.setup
        if setup.thread.is_current:
            raise RunError(
                "the engine was closed in the middle of an exchange, by on_reduced or "
                "by a signal's handler: let these raise or set a flag, and close after "
                "the step"
            )
        self._closed = True
        if self._in_a_round:
            logger.warning(
                "closed in the middle of a round of local steps, where the ranks' "
                "models differ: call engine.synchronise() after the last step"
            )
        release(self)
        self._freed.detach()
        self._stop()
        if self._given_moments is not None:
            self._given_moments.remove()
        with closing(setup.channel):
            setup.thread.close()

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
        if self._steps.rounds is not None:
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

    @_lasting
    def shadow_step(self) -> None:
        """Take part in a step of other ranks, with gradients of zero."""
        self._buffers.shadowing = True
        self._steps.shadow()

    def take_over(self, is_last: bool) -> None:
        """Take over parameters and buffers of the highest rank that ``is_last``.

        Buffers only where they follow rank 0.
        """
        ranks = self._transport.gather_objects(is_last)
        root = max(rank for rank, last in enumerate(ranks) if last)
        tensors = [*self.model.parameters(), *self._buffers.tensors]
        broadcast_tensors(self._transport, tensors, root)
        self._buffers.shadowing = False

    # From plan to plan

    def _execute(self, plan: Plan) -> None:
        """Hook the model for ``plan``, and no longer for the one before.

        If that fails, nothing has changed.
        """
        parameters = trainable(self.model)
        with ExitStack() as undo, ExitStack() as begun:
            rounds = rounds_of(plan, parameters, self._optimizer, self._scaler)
            if rounds is not None:
                begun.enter_context(rounds.counted(self.synchronise))
            momentum = self._momentum.wanted_by(plan, undo)
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
            begun.enter_context(attach(self.model, places, self._steps))
            self._executing.close()
            self._executing = begun.pop_all()
            undo.pop_all()
        self.plan = plan
        self._momentum.go_on(momentum)
        self._steps.rounds = rounds
        self._steps.begin(buckets=buckets, second_moments=moments)

    @contextmanager
    def _listening(self, wanted: bool) -> Iterator[None]:
        before, self._steps.listening = self._steps.listening, wanted
        try:
            yield
        finally:
            self._steps.listening = before

    def _stop(self) -> None:
        """Remove all hooks but those that were given."""
        self._executing.close()
        self._on_optimizers.close()
        self._steps.close()
        self._momentum.close()

    @property
    def _in_a_round(self) -> bool:
        """Whether the ranks' models differ."""
        rounds = self._steps.rounds
        return rounds is not None and rounds.taken > 0


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
