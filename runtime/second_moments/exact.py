"""Exact second moments, caught with hooks while backward runs.

A forward hook keeps each layer's input and puts a hook on its output. When backward
reaches the output, its gradient and the kept input give the second moments of the
layer's parameters: in closed form for known layers, else by ``torch.func``. As the mean
over the batch is part of the loss, the output's gradient is 1/|B| of each sample's own,
so nothing is left to be scaled. Backward reaches the parameters only after the output,
so the moments are there when a parameter's gradient is.

Samples are told apart by the first dimension, which in every layer must be as long as
in the model's input. What this cannot see: a parameter that is also used outside of its
layer's forward, inputs whose first dimension is not the batch, and that a backward pass
is ``autograd.grad``'s, which leaves ``.grad`` alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from comm_plan.errors import MismatchError
from comm_plan.runtime.hooks import copyable, is_own
from comm_plan.runtime.second_moments import vectorised
from comm_plan.runtime.second_moments.batch import batch_size
from comm_plan.runtime.second_moments.closed_forms import closed_forms


class NoExactSecondMoments(MismatchError):
    """A model has no exact second moments; ``reason`` says of what and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}, so there are no exact second moments: use micro-batches "
            "(train --second-moments micro-batches:4, MicroBatchSecondMoments), or "
            "another compressor"
        )
        self.reason = reason


def stop(error: Exception) -> None:
    """Raise ``error``."""
    raise error


@dataclass(frozen=True)
class _Layer:
    """A module and those of its own parameters whose moments are wanted.

    Attributes:
        is_plain: it computes what its class does, for which there may be closed forms.
    """

    name: str
    module: nn.Module
    parameters: dict[str, nn.Parameter]
    is_plain: bool


class ExactSecondMoments:
    """Computes second moments during every backward of ``model``.

    Args:
        model: called as a whole, with the batch in the first dimension of its inputs;
            the loss is the mean over the batch.
        parameters: whose moments are wanted; None: all that are trained.
        on_error: what to do with an error in forward or backward.

    Raises:
        NoExactSecondMoments: samples are not independent in the model (batch
            normalisation, shared parameters); later, in forward or backward: a layer's
            samples cannot be told apart. The message names the layer.
    """

    of_parts = False

    def __init__(
        self,
        model: nn.Module,
        parameters: Iterable[nn.Parameter] | None = None,
        on_error: Callable[[Exception], None] = stop,
    ) -> None:
        """Attach the hooks."""
        self._on_error = on_error
        self._names = {p: name for name, p in model.named_parameters()}
        trained = (p for p in self._names if p.requires_grad)
        wanted = set(trained if parameters is None else parameters)
        self._mixing = [
            (name, module)
            for name, module in model.named_modules()
            if isinstance(module, _BatchNorm)
        ]
        self._refuse_mixing()
        _refuse_shared(model, wanted)
        layers = _layers(model, wanted)
        self._sums: dict[nn.Parameter, torch.Tensor] = {}
        self._seen: set[nn.Parameter] = set()
        self._batch_size: int | None = None
        self._replaying = False
        before_forward = model.register_forward_pre_hook(
            copyable(partial(self._call, self._on_batch)), with_kwargs=True
        )
        self._handles = [before_forward]
        for layer in layers:
            hook = copyable(partial(self._call, self._on_forward, layer))
            self._handles.append(layer.module.register_forward_hook(hook))
        for parameter in wanted:
            seen = copyable(self._seen.discard)
            self._handles.append(parameter.register_post_accumulate_grad_hook(seen))

    def of(self, parameter: nn.Parameter) -> torch.Tensor:
        """Hand over the second moments of the backward passes since the last call.

        Args:
            parameter: one of the model's; its gradient must be complete.

        Returns:
            ``sum_z (g_z / |B|)^2``, shaped like ``parameter``.

        Raises:
            NoExactSecondMoments: the parameter's layer did not run as a module.
        """
        if parameter not in self._sums:
            _refuse(
                f"parameter {self._names.get(parameter, 'of another model')}",
                "is not used through its own layer's forward",
            )
        return self._sums.pop(parameter)

    def knows(self, parameter: nn.Parameter) -> bool:
        """Return whether there were backward passes since :meth:`of`."""
        return parameter in self._sums

    def reset(self) -> None:
        """Forget the backward passes so far, but not the forward that may be next.

        An engine calls it when it gives a step up. Gradients that are set to None need
        no call; call it where some are thrown away otherwise.
        """
        self._sums.clear()

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()
        self.reset()

    def _call(self, hook: Callable[..., None], *arguments: Any) -> None:
        try:
            hook(*arguments)
        except Exception as error:
            self._on_error(error)

    def _on_batch(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if torch.is_grad_enabled() and not self._replaying:
            self._refuse_mixing()
            self._batch_size = batch_size((args, kwargs))
            self._seen.clear()
            for parameter in [p for p in self._sums if p.grad is None]:
                del self._sums[parameter]  # its gradient was thrown away

    def _on_forward(
        self, layer: _Layer, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        if self._replaying or not torch.is_grad_enabled():
            return
        tensors = [*inputs, output]
        if not inputs or not all(isinstance(t, torch.Tensor) for t in tensors):
            _refuse(_title(layer), "takes or returns more than positional tensors")
        for tensor in tensors:
            if tensor.ndim == 0 or len(tensor) != self._batch_size:
                _refuse(
                    _title(layer),
                    f"sees a tensor of shape {list(tensor.shape)} in a batch of "
                    f"{self._batch_size}",
                )
        if output.requires_grad:
            kept = tuple(x.detach() for x in inputs)
            on_gradient = partial(self._on_output_gradient, layer, kept)
            output.register_hook(partial(self._call, on_gradient))

    @torch.no_grad()
    def _on_output_gradient(
        self, layer: _Layer, inputs: tuple[torch.Tensor, ...], g: torch.Tensor
    ) -> None:
        if not self._seen.isdisjoint(layer.parameters.values()):
            _refuse(_title(layer), "is used more than once in a backward pass")
        # Squares of 16 bits would vanish, or overflow by the scale of the loss.
        with torch.autocast(g.device.type, enabled=False):
            moments = self._compute(layer, inputs, g)
        for name, moment in moments.items():
            parameter = layer.parameters[name]
            self._seen.add(parameter)
            before = self._sums.get(parameter)
            self._sums[parameter] = moment if before is None else before + moment

    def _compute(
        self, layer: _Layer, inputs: tuple[torch.Tensor, ...], g: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        dtype = next(iter(layer.parameters.values())).dtype
        g = g.to(dtype)
        inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
        forms = closed_forms(layer.module) if layer.is_plain else None
        if forms is not None and forms.keys() >= layer.parameters.keys():
            return {
                name: forms[name](layer.module, inputs[0], g)
                for name in layer.parameters
            }
        self._replaying = True
        try:
            return vectorised.second_moments(layer.module, layer.parameters, inputs, g)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            _refuse(_title(layer), f"cannot be vectorised over samples ({reason})")
        finally:
            self._replaying = False

    def _refuse_mixing(self) -> None:
        for name, module in self._mixing:
            if module.training or module.running_mean is None:
                _refuse(f"layer {name} (batch normalisation)", "mixes samples")


def _layers(model: nn.Module, wanted: set[nn.Parameter]) -> list[_Layer]:
    layers = []
    for name, module in model.named_modules():
        own = module.named_parameters(recurse=False)
        parameters = {key: p for key, p in own if p in wanted}
        is_plain = "forward" not in vars(module) and all(
            map(is_own, module._forward_hooks.values())
        )
        layer = _Layer(name, module, parameters, is_plain)
        if parameters and getattr(module, "scale_grad_by_freq", False):
            _refuse(_title(layer), "scales gradients by the whole batch's frequencies")
        if parameters:
            layers.append(layer)
    return layers


def _refuse_shared(model: nn.Module, wanted: set[nn.Parameter]) -> None:
    names: dict[nn.Parameter, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[parameter].append(name)
    for parameter, shared in names.items():
        if len(shared) > 1 and parameter in wanted:
            _refuse(f"parameter {shared[0]}", f"is shared with {shared[1]}")


def _title(layer: _Layer) -> str:
    return f"layer {layer.name or '(the model)'} ({type(layer.module).__name__})"


def _refuse(who: str, why: str) -> NoReturn:
    raise NoExactSecondMoments(f"{who} {why}")
