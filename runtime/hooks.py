"""When forward, gradients and optimizer steps happen: all that touches autograd.

Only this file uses internals of PyTorch's autograd. They tell which backward a hook
runs in and ask for a call at the end of it; there is no public way to either.

======================  ========================================  ====================
hook                    runs                                      leads to
======================  ========================================  ====================
model, before forward   outside of backward                       ``on_any_forward``
the same                in the training loop                      ``on_forward``
the same                within ``no_sync``                        ``on_local_forward``
model, after forward    in the training loop; hooks the outputs   (the next one)
the same                if that forward raised                    ``on_forward_failed``
gradient of an output   when backward begins                      ``on_backward``
the same, a parameter   if an earlier backward failed             ``on_backward_lost``
parameter               in backward, once its gradient is         ``on_backward``,
                        complete                                  ``on_gradient``
end of backward         when all gradients are there              ``on_backward_end``
======================  ========================================  ====================

:func:`attach_to_optimizers` tells of the steps of optimizers.

Hooks of CPU parameters run on the thread that called ``backward``; those of CUDA
parameters on autograd's thread of that device. All have run, and so has
``on_backward_end``, when ``backward`` returns.

The call at the end belongs to the graph task in which it is asked for. The gradient of
the model's output arrives in the outermost one; re-entrant checkpointing runs inner
ones, at whose end nothing must be finished. If anything raises, there is no call, and
what was to be called is gone with the graph task.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Container, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from comm_plan.errors import RunError
from comm_plan.nested import tensors_in

NO_BACKWARD = -1
"""The graph task while no backward runs."""


def _ignored(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class ParameterPlace:
    """Where a parameter is in the plan."""

    name: str
    bucket: int
    index: int


class Listener:
    """What the hooks tell of; whoever wants to know overrides it."""

    def is_listening(self) -> bool:
        """Return whether to tell of anything now; not so within ``no_sync``."""
        return True

    def on_any_forward(self) -> None:
        """Learn that a forward begins, of training or not."""

    def on_forward(self) -> None:
        """Learn that a training forward begins, not one that a checkpoint repeats."""

    def on_local_forward(self) -> None:
        """Learn that a training forward begins while nothing is told."""

    def on_forward_failed(self) -> None:
        """Learn that a training forward raised."""

    def on_backward(self, graph_task: int) -> bool:
        """Learn that a gradient arrives in this graph task.

        Returns:
            Whether to tell of its end: true once a step.
        """
        return True

    def on_backward_lost(self) -> None:
        """Learn that a gradient arrives after a backward that has failed.

        Its end was awaited, and is no longer.
        """

    def on_gradient(self, place: ParameterPlace, parameter: nn.Parameter) -> None:
        """Learn that this parameter's ``.grad`` is complete."""

    def on_backward_end(self) -> None:
        """Learn that no more gradients come."""


OnStep = Callable[[torch.optim.Optimizer], None]
"""Learns of the step of an optimizer."""


def updates(
    optimizer: torch.optim.Optimizer, parameters: Container[nn.Parameter]
) -> bool:
    """Return whether any of ``parameters`` is among those of ``optimizer``."""
    groups = optimizer.param_groups
    return any(p in parameters for group in groups for p in group["params"])


def attach(
    model: nn.Module,
    places: Mapping[nn.Parameter, ParameterPlace],
    listener: Listener,
) -> ExitStack:
    """Hook ``model`` and its parameters.

    The hooks of the model keep ``listener`` alive as long as the model. Those of its
    parameters do not, as the garbage collector does not see through tensors. A copy of
    the model has no hooks that do anything.

    Returns:
        What removes all hooks when it is closed.
    """
    hooks = _Hooks(frozenset(places), listener)
    attached = ExitStack()
    # Kept, what adds up a parameter's gradients has one stream, on which all hooks run;
    # else each forward makes it anew, on the stream of that part of the model.
    accumulators = [
        get_gradient_edge(p) for p in places if p.is_cuda and p.requires_grad
    ]
    attached.callback(accumulators.clear)
    # While it has one of these, PyTorch swaps no parameter with a tensor that has no
    # hook, as a conversion of the model may be set to do.
    kept_in_place = [weakref.ref(parameter) for parameter in places]
    attached.callback(kept_in_place.clear)
    for parameter, place in places.items():
        handle = parameter.register_post_accumulate_grad_hook(
            _uncompiled(_OnGradient)(weakref.ref(hooks), place)
        )
        attached.callback(handle.remove)
    for handle in (
        model.register_forward_pre_hook(copyable(hooks.on_forward)),
        model.register_forward_hook(copyable(hooks.on_output)),
        model.register_forward_hook(copyable(hooks.on_forward_end), always_call=True),
    ):
        attached.callback(handle.remove)
    return attached


def attach_to_optimizers(
    parameters: frozenset[nn.Parameter],
    *,
    before_any: OnStep = _ignored,
    before: OnStep = _ignored,
    after: OnStep = _ignored,
) -> ExitStack:
    """Hook the steps of all optimizers that hold any of ``parameters``.

    Not within such a step, as PyTorch goes through all hooks then. They are global, and
    end with what is returned.

    Args:
        parameters: of the model.
        before_any: is called before the update of every optimizer, even of others.
        before: is called before the update, which is not in backward.
        after: is called after it, unless it raised.

    Returns:
        What removes the hooks when it is closed.
    """
    hooks = _OptimizerHooks(parameters, before_any, before, after)
    attached = ExitStack()
    for register, call in (
        (register_optimizer_step_pre_hook, _OptimizerHooks.before),
        (register_optimizer_step_post_hook, _OptimizerHooks.after),
    ):
        handle = register(_uncompiled(_OnOptimizer)(weakref.ref(hooks), call))
        weakref.finalize(hooks, handle.remove)
        attached.callback(handle.remove)
    attached.callback(hooks.forget)  # which keeps them until then
    return attached


class _NotCopied:
    """What copies and pickles of a model or a parameter do not take along."""

    def __reduce__(self) -> tuple[type[_NoHook], tuple[()]]:
        return _NoHook, ()


class _Copyable(_NotCopied):
    """A hook of the model."""

    def __init__(self, hook: Callable[..., None]) -> None:
        self._hook = hook

    def __call__(self, *arguments: object) -> None:
        self._hook(*arguments)


class _OnOutput(_NotCopied):
    """The hook of an output, which may outlive the hooks of its model."""

    def __init__(self, hooks: weakref.ref[_Hooks]) -> None:
        self.hooks = hooks

    def __call__(self, gradient: torch.Tensor) -> None:
        hooks = self.hooks()
        if hooks is not None:
            hooks.on_output_gradient()


class _OnGradient(_NotCopied):
    """The hook of a parameter, unless the hooks' model is gone.

    There are hundreds, each called in every step while the device waits for what
    backward does next: nothing is wrapped around it that is not needed.
    """

    def __init__(self, hooks: weakref.ref[_Hooks], place: ParameterPlace) -> None:
        self._hooks = hooks
        self._place = place

    def __call__(self, parameter: nn.Parameter) -> None:
        hooks = self._hooks()
        if hooks is not None:
            hooks.on_gradient(self._place, parameter)


_UNCOMPILED: dict[type[Any], type[Any]] = {}


def _uncompiled(kind: type[Any]) -> type[Any]:
    """Return ``kind`` with a call that ``torch.compile`` does not look into.

    For a model, or a step, that may have been compiled before.
    """
    # Asking torch.compiler for it would load the compiler, which takes a second.
    if "torch._dynamo" not in sys.modules:
        return kind
    if kind not in _UNCOMPILED:
        call = torch.compiler.disable(kind.__call__)
        _UNCOMPILED[kind] = type(kind.__name__, (kind,), {"__call__": call})
    return _UNCOMPILED[kind]


def copyable(hook: Callable[..., None]) -> Callable[..., None]:
    """Return ``hook`` for what has copies that are to have none; never compiled."""
    hidden: Callable[..., None] = _uncompiled(_Copyable)(hook)
    return hidden


def is_own(hook: object) -> bool:
    """Return whether ``hook`` is one of comm-plan's, which change no output."""
    return isinstance(hook, _NotCopied)


class _NoHook:
    """What copies have instead."""

    def __call__(self, *arguments: object) -> None:
        pass


class _Hooks:
    """The hooks, with the signatures that PyTorch wants; held by what they hook."""

    def __init__(self, parameters: frozenset[nn.Parameter], listener: Listener) -> None:
        self._parameters = parameters
        self._listener = listener
        self._in_forward = False
        self._awaited: weakref.ref[_End] | None = None

    def on_forward(self, model: nn.Module, inputs: object) -> None:
        """Tell of a forward, above all one whose gradients will be exchanged.

        Raises:
            RunError: DDP averages the same gradients.
        """
        wrapper = DistributedDataParallel._active_ddp_module
        if not (wrapper is None or self._parameters.isdisjoint(wrapper.parameters())):
            raise RunError(
                "the model is wrapped in DistributedDataParallel, which averages its "
                "gradients too: call it unwrapped"
            )
        if torch._C._current_graph_task_id() != NO_BACKWARD:  # a checkpoint
            return
        if not self._is_watching:  # nor a forward beside backward, of another thread
            self._listener.on_any_forward()
        if not (torch.is_grad_enabled() and model.training):
            return
        if self._listener.is_listening():
            self._listener.on_forward()
            self._in_forward = True
        else:
            self._listener.on_local_forward()

    def on_output(self, model: nn.Module, inputs: object, output: object) -> None:
        """Learn of the start of backward where the loss is, even if nothing is used."""
        self._in_forward = False
        if not self._expects_backward:
            return
        for tensor in tensors_in(output):
            if not (tensor.is_leaf or self._has_hooked(tensor)):
                # A hook on a leaf would stay there.
                tensor.register_hook(_uncompiled(_OnOutput)(weakref.ref(self)))

    def on_forward_end(self, model: nn.Module, inputs: object, output: object) -> None:
        """Tell of a forward that raised, after which ``on_output`` was not called."""
        if self._in_forward:
            self._in_forward = False
            self._listener.on_forward_failed()

    def _has_hooked(self, output: torch.Tensor) -> bool:
        """Return whether the model has returned this very tensor before."""
        hooks = (output._backward_hooks or {}).values()
        return any(
            isinstance(hook, _OnOutput) and hook.hooks() is self for hook in hooks
        )

    def on_output_gradient(self) -> None:
        """Watch for the end of this backward."""
        if self._listener.is_listening() and not self._is_watching:
            self._watch_backward()

    def on_gradient(self, place: ParameterPlace, parameter: nn.Parameter) -> None:
        """Hand on a complete gradient."""
        if not self._is_watching:
            if not self._listener.is_listening():
                return
            self._watch_backward()
        self._listener.on_gradient(place, parameter)

    @property
    def _expects_backward(self) -> bool:
        return self._listener.is_listening() and torch.is_grad_enabled()

    @property
    def _is_watching(self) -> bool:
        """Whether a backward goes on whose end is awaited."""
        return self._awaited is not None and self._awaited() is not None

    def _watch_backward(self) -> None:
        """Ask for the call at the end of this backward.

        Raises:
            RunError: backward is compiled, and makes no such calls.
        """
        compiled = sys.modules.get("torch._dynamo.compiled_autograd")
        if compiled is not None and compiled.in_compiled_autograd_region:
            raise RunError(
                "backward is compiled (compiled autograd), which does not say when it "
                "ends: compile the model only, and call backward outside"
            )
        if self._awaited is not None:
            self._awaited = None
            self._listener.on_backward_lost()
        if self._listener.on_backward(torch._C._current_graph_task_id()):
            end = _uncompiled(_End)(self._on_backward_end)
            self._awaited = weakref.ref(end)
            Variable._execution_engine.queue_callback(end)

    def _on_backward_end(self) -> None:
        self._awaited = None
        self._listener.on_backward_end()


class _End:
    """The call at the end of one backward; it lives no longer than that."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __call__(self) -> None:
        self._call()


class _OptimizerHooks:
    """Tell of the steps of those optimizers that hold parameters of the model."""

    def __init__(
        self,
        parameters: frozenset[nn.Parameter],
        before_any: OnStep,
        before: OnStep,
        after: OnStep,
    ) -> None:
        self._parameters = parameters
        self._before_any = before_any
        self._before = before
        self._after = after

    def before(self, optimizer: torch.optim.Optimizer) -> None:
        """Tell of a step that begins.

        Raises:
            RunError: it is inside backward.
        """
        self._before_any(optimizer)
        if not updates(optimizer, self._parameters):
            return
        if torch._C._current_graph_task_id() != NO_BACKWARD:
            raise RunError(
                "an optimizer stepped inside backward, where gradients are not "
                "averaged over the ranks yet: step after backward, or in "
                "engine.on_reduced"
            )
        self._before(optimizer)

    def after(self, optimizer: torch.optim.Optimizer) -> None:
        """Tell of the end of such a step."""
        if updates(optimizer, self._parameters):
            self._after(optimizer)

    def forget(self) -> None:
        """Tell of no more steps."""
        self._parameters = frozenset()
        self._before_any = _ignored


class _OnOptimizer:
    """The hook of all optimizers, unless what it tells is gone."""

    def __init__(
        self,
        hooks: weakref.ref[_OptimizerHooks],
        hook: Callable[[_OptimizerHooks, torch.optim.Optimizer], None],
    ) -> None:
        self._hooks = hooks
        self._hook = hook

    def __call__(
        self, optimizer: torch.optim.Optimizer, arguments: object, keywords: object
    ) -> None:
        hooks = self._hooks()
        if hooks is not None:
            self._hook(hooks, optimizer)
