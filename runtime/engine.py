"""The engine: executes a plan behind ``loss.backward(); optimizer.step()``.

Each parameter has a hook that fires when its gradient is complete. The hook hands the
gradient to its bucket; once a bucket is complete and all earlier ones are launched, the
communication thread exchanges it while backward goes on, and makes every ``.grad`` in
it the mean over the ranks, as PyTorch's DistributedDataParallel (DDP) would. A callback
at the end of backward waits for the buckets.

What is like DDP: parameters and buffers start from rank 0's, buffers follow rank 0
before each training forward, ``no_sync`` accumulates locally, gradients are divided by
the world size before they are summed.

What differs from DDP: the model is not wrapped; buckets come from the plan and are
never rebuilt; a compressed bucket's mean is what was sent, the rest waits in residuals.

Hooks of users on the same parameters see gradients before they are averaged.
``torch.compile`` of the whole model fires all hooks after backward: the result is
right, but nothing overlaps; compile block by block.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import nn
from torch.autograd import Variable
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from comm_plan.compressors.base import Context
from comm_plan.errors import InputError, NonFiniteError, RunError
from comm_plan.plans import Plan, load_plan
from comm_plan.plans.parameters import trainable
from comm_plan.runtime.agreement import check_plan, check_ranks
from comm_plan.runtime.bucket import Bucket
from comm_plan.runtime.communication import CommunicationThread, Pending
from comm_plan.runtime.flat import broadcast_tensors
from comm_plan.runtime.guard import Guard
from comm_plan.transports.base import Transport
from comm_plan.transports.connect import current_transport

OnNonFinite = Literal["stop", "skip", "propagate"]

logger = logging.getLogger("comm_plan")


class SecondMoments(Protocol):
    """Gives the per-sample second moments that VGC needs."""

    def of(self, parameter: nn.Parameter) -> torch.Tensor:
        """Return ``sum_z (g_z / |B|)^2``, shaped like ``parameter``."""
        ...

    def remove(self) -> None:
        """Take the hooks off the model."""
        ...


@dataclass(frozen=True)
class _Place:
    """Where a parameter is in the plan."""

    name: str
    bucket: int
    index: int


class Engine:
    """A plan in execution for one model; made by :func:`comm_plan.parallelize`.

    Args:
        model: the model; it is changed in place (hooks, parameters of rank 0).
        plan: the plan for it.
        transport: the ranks; the engine talks on duplicates of it.
        seed: of the random numbers of stochastic compressors; equal on all ranks.
        on_nonfinite: what to do when a rank's gradient holds inf or NaN; residuals
            never see them. ``propagate``: fill every ``.grad`` with NaN on all ranks,
            so that a ``GradScaler`` skips the step everywhere. ``skip``: leave every
            ``.grad`` None on all ranks, so that ``optimizer.step()`` changes nothing.
            ``stop``: raise :class:`NonFiniteError` on all ranks.
        find_unused_parameters: parameters may stay without gradient; one that no rank
            used keeps ``.grad`` None. Costs one small all-reduce a step. If False, a
            missing gradient is an error that names the parameter.
        broadcast_buffers: buffers follow rank 0 before each training forward.
        second_moments: where VGC gets per-sample second moments from; None: exact.

    Raises:
        MismatchError: the plan does not fit the model or the run, or ranks differ.
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
        second_moments: SecondMoments | None = None,
    ) -> None:
        check_plan(plan, model, transport.world_size)
        check_ranks(plan, model, transport)
        self.model = model
        self.plan = plan
        self.step = 0
        self.skipped_steps = 0
        self.last_step_skipped = False
        self._density_floor = 0.0
        self.on_nonfinite: OnNonFinite = on_nonfinite
        self.find_unused_parameters = find_unused_parameters
        self.broadcast_buffers = broadcast_buffers
        self._transport = transport.duplicate()
        self._channel = transport.duplicate()
        self._thread = CommunicationThread(transport.device)
        parameters = trainable(model)
        self._buckets = self._build_buckets(parameters, seed)
        self._guarded = not all(
            bucket.compressor.carries_nonfinite for bucket in self._buckets
        )
        self._second_moments = second_moments or self._exact_second_moments()
        self._sync = True
        self._begin_step()
        broadcast_tensors(self._transport, list(model.parameters()))
        broadcast_tensors(self._transport, list(model.buffers()))
        self._handles = self._register_hooks(parameters)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The buckets, in launch order."""
        return self._buckets

    @property
    def transport(self) -> Transport:
        """The ranks; for calls that all of them make between two steps."""
        return self._transport

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within, backward only accumulates locally; residuals do not move."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def state_dict(self) -> dict[str, Any]:
        """Return what an exact resume needs; it differs from rank to rank."""
        tensors: dict[str, dict[str, torch.Tensor]] = {}
        for bucket in self._buckets:
            tensors.update(bucket.state())
        return {
            "step": self.step,
            "skipped_steps": self.skipped_steps,
            "tensors": tensors,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over :meth:`state_dict`, also from a run under another plan."""
        self.step = state["step"]
        self.skipped_steps = state["skipped_steps"]
        for bucket in self._buckets:
            bucket.load_state(state["tensors"])
        self._begin_step()

    def rescale(self, factor: float) -> None:
        """Multiply all residuals by ``factor``; call it when the loss scale changes."""
        for bucket in self._buckets:
            bucket.rescale(factor)

    def warm_up(self, density_floor: float) -> None:
        """Let sparse methods send at least this share of each tensor from now on."""
        self._density_floor = density_floor
        self._begin_step()

    def close(self) -> None:
        """Remove all hooks and end the communication thread."""
        for handle in self._handles:
            handle.remove()
        if self._second_moments is not None:
            self._second_moments.remove()
        self._thread.close()
        self._channel.close()
        self._transport.close()

    # Set-up

    def _build_buckets(
        self, parameters: dict[str, nn.Parameter], seed: int
    ) -> tuple[Bucket, ...]:
        transport = self._transport
        buckets = []
        for number, planned in enumerate(self.plan.buckets):
            own_seed = np.random.SeedSequence([seed, transport.rank, number])
            context = Context(
                world_size=transport.world_size,
                rank=transport.rank,
                device=parameters[planned.tensors[0]].device,
                seed=int(own_seed.generate_state(1)[0]),
            )
            members = [parameters[name] for name in planned.tensors]
            buckets.append(Bucket(planned, members, context))
        return tuple(buckets)

    def _exact_second_moments(self) -> SecondMoments | None:
        wanting = [b for b in self._buckets if b.compressor.needs_second_moments]
        if not wanting:
            return None
        from comm_plan.runtime.second_moments import ExactSecondMoments

        parameters = [p for bucket in wanting for p in bucket.parameters]
        return ExactSecondMoments(self.model, parameters)

    def _register_hooks(
        self, parameters: dict[str, nn.Parameter]
    ) -> list[RemovableHandle]:
        """Hook parameters, forward and optimizer steps.

        The model's hooks keep the engine alive as long as the model. The hook on
        optimizers is global, so it must not.
        """
        handles: list[RemovableHandle] = []
        for number, bucket in enumerate(self.plan.buckets):
            for index, name in enumerate(bucket.tensors):
                hook = partial(self._on_gradient, _Place(name, number, index))
                handles.append(
                    parameters[name].register_post_accumulate_grad_hook(hook)
                )
        weak = weakref.WeakMethod(self._on_optimizer)
        return [
            *handles,
            self.model.register_forward_pre_hook(self._on_forward),
            self.model.register_forward_hook(self._on_output),
            register_optimizer_step_pre_hook(partial(_call_if_alive, weak)),
        ]

    # One step

    def _begin_step(self) -> None:
        self._launched: list[Pending[None]] = []
        self._forward_pending = False
        self._graph_task: int | None = None
        self._guard = Guard()
        for bucket in self._buckets:
            bucket.begin(self.step, self._density_floor)

    def _on_forward(self, module: nn.Module, inputs: Any) -> None:
        """Start over after a backward that never ended; align buffers with rank 0."""
        if not (self._sync and torch.is_grad_enabled() and self.model.training):
            return
        if torch._C._current_graph_task_id() != -1:  # a checkpoint computes again
            return
        if self._graph_task is not None:
            self._abandon_step()
        self._forward_pending = True
        if self.broadcast_buffers:
            broadcast_tensors(self._transport, list(self.model.buffers()))

    def _on_output(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Learn of the start of backward where the loss is, even if nothing is used."""
        if not (self._sync and torch.is_grad_enabled()):
            return
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(self._on_output_gradient)

    def _on_output_gradient(self, gradient: torch.Tensor) -> None:
        if self._sync:
            self._watch_backward()

    def _watch_backward(self) -> None:
        """Ask autograd, once a backward, to call back at the end of it.

        The callback belongs to the graph task in which it is queued. The gradient of
        the model's output arrives in the outermost one; re-entrant checkpointing runs
        inner ones, at whose end nothing must be finished.
        """
        if self._graph_task is None:
            self._graph_task = torch._C._current_graph_task_id()
            Variable._execution_engine.queue_callback(self._finish)

    def _on_gradient(self, place: _Place, parameter: nn.Parameter) -> None:
        if not self._sync:
            return
        self._watch_backward()
        gradient = parameter.grad
        if gradient is None or gradient.is_sparse:
            raise InputError(
                f"parameter {place.name} has a sparse gradient, which a plan cannot "
                "merge: build the layer with sparse=False"
            )
        bucket = self._buckets[place.bucket]
        if bucket.used[place.index]:
            raise RunError(
                f"parameter {place.name} got a second gradient in one backward: use "
                "non-reentrant checkpointing for layers that share parameters"
            )
        gradient = gradient.detach().flatten()
        moment = self._second_moment(place, bucket)
        if not bucket.compressor.carries_nonfinite:
            gradient, moment = self._guard.admit(place.name, gradient, moment)
        bucket.add(place.index, gradient, moment)
        self._launch_complete()

    def _second_moment(self, place: _Place, bucket: Bucket) -> torch.Tensor | None:
        if not bucket.compressor.needs_second_moments:
            return None
        assert self._second_moments is not None
        moment = self._second_moments.of(bucket.parameters[place.index])
        return moment.detach().flatten()

    def _launch_complete(self) -> None:
        while len(self._launched) < len(self._buckets):
            bucket = self._buckets[len(self._launched)]
            if not bucket.complete:
                return
            self._launch(bucket)

    def _launch(self, bucket: Bucket) -> None:
        def exchange() -> None:
            bucket.exchange(self._channel)
            bucket.write_used()

        self._launched.append(self._thread.submit(exchange))

    # The end of a step

    def _on_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Take part in the step even if this rank's loss used no parameter."""
        if not self._forward_pending:
            return
        mine = {id(p) for bucket in self._buckets for p in bucket.parameters}
        groups = optimizer.param_groups
        if any(id(p) in mine for group in groups for p in group["params"]):
            self._finish()

    def _finish(self) -> None:
        """Wait for the buckets, then settle the step."""
        self._add_missing()
        status = self._exchange_status()
        for pending in self._launched:
            pending.wait()
        flags = status.wait().tolist() if status is not None else [0]
        if self.find_unused_parameters:
            self._write_used_elsewhere(flags[1:])
        culprit = self._nonfinite_culprit(flags[0])
        names = self._guard.names
        self.step += 1
        self._begin_step()
        self.last_step_skipped = culprit is not None
        if culprit is not None:
            self._refuse_step(culprit, names)
            return
        for bucket in self._buckets:
            bucket.settle()

    def _add_missing(self) -> None:
        missing = [
            name
            for bucket in self._buckets
            for name, used in zip(bucket.planned.tensors, bucket.used, strict=True)
            if not used
        ]
        if missing and not self.find_unused_parameters:
            self._abandon_step()
            names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise RunError(
                f"{len(missing)} parameters got no gradient in this step: {names}: "
                "pass find_unused_parameters=True if that is meant"
            )
        for bucket in self._buckets[len(self._launched) :]:
            bucket.add_missing()
            self._launch(bucket)

    def _exchange_status(self) -> Pending[torch.Tensor] | None:
        """Share, behind the last bucket, what all ranks must know of each other.

        The flags are the highest rank with a non-finite gradient plus one (0: none),
        then for every parameter whether this rank used it.
        """
        if not (self._guarded or self.find_unused_parameters):
            return None
        device = self._channel.device
        flags = self._guard.flag(self._transport.rank, device)
        if self.find_unused_parameters:
            used = [flag for bucket in self._buckets for flag in bucket.used]
            flags = torch.cat([flags, torch.tensor(used).to(flags)])

        def exchange() -> torch.Tensor:
            self._channel.all_reduce(flags, "max")
            return flags

        return self._thread.submit(exchange)

    def _write_used_elsewhere(self, used: list[int]) -> None:
        """Write what only other ranks used; leave what no rank used as it is."""
        anywhere = iter(used)
        for bucket in self._buckets:
            for index, here in enumerate(bucket.used):
                if next(anywhere) and not here:
                    bucket.write(index)

    def _nonfinite_culprit(self, flag: int) -> str | None:
        """Return who sent inf or NaN in this step, None if nobody did.

        Sums of dense buckets are the same on all ranks, so looking at them needs no
        communication; with ``propagate`` they are left to the user's own check.
        """
        if flag:
            return f"rank {flag - 1}"
        if self.on_nonfinite == "propagate":
            return None
        for bucket in self._buckets:
            if bucket.compressor.carries_nonfinite and not bucket.is_finite():
                return "some rank"
        return None

    def _refuse_step(self, culprit: str, names: list[str]) -> None:
        """Keep states as if nothing had been sent, then do as configured."""
        for bucket in self._buckets:
            bucket.compressor.undo()
        where = f" in {', '.join(names[:3])}" if names else ""
        message = f"step {self.step - 1}: {culprit} had inf or NaN gradients{where}"
        fill = None if self.on_nonfinite == "skip" else torch.nan
        for bucket in self._buckets:
            bucket.refuse(fill)
        self.skipped_steps += 1
        if self.on_nonfinite == "stop":
            raise NonFiniteError(
                f"{message}: lower the learning rate, or skip such steps"
            )
        logger.warning("%s: the step is skipped on all ranks", message)

    def _abandon_step(self) -> None:
        """Wait for what is under way and forget the step."""
        for pending in self._launched:
            pending.wait()
        self._begin_step()


def _call_if_alive(
    weak: weakref.WeakMethod[Any],
    optimizer: torch.optim.Optimizer,
    arguments: Any,
    keywords: Any,
) -> None:
    """Call the method with ``optimizer`` unless its engine is gone."""
    method = weak()
    if method is not None:
        method(optimizer)


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a model's output: nested tuples, lists, dicts."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, (tuple, list)):
        for value in output:
            yield from _tensors(value)


def parallelize(
    model: nn.Module,
    plan: Plan | str,
    *,
    transport: Transport | None = None,
    **options: Any,
) -> Engine:
    """Make ``model`` train by ``plan`` over all ranks of this run.

    The training loop stays as it is::

        engine = comm_plan.parallelize(model, "plan.json")
        for batch in batches:
            optimizer.zero_grad()
            loss(model(batch)).backward()
            optimizer.step()

    Args:
        model: any model; it is changed in place, not wrapped.
        plan: a plan, or the path of one.
        transport: the ranks; None: the initialised default process group of
            torch.distributed, or else what the launcher's environment says.
        **options: as for :class:`Engine`.

    Returns:
        The engine: ``no_sync()``, ``state_dict()``, ``load_state_dict()``, ``close()``.

    Raises:
        DocumentError: the plan cannot be read.
        MismatchError: the plan does not fit the model or the run, or ranks differ.
    """
    if not isinstance(plan, Plan):
        plan = load_plan(plan)
    if transport is None:
        transport = current_transport(plan.backend)
    return Engine(model, plan, transport, **options)
