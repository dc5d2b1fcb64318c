"""The momentum of the user's SGD, taken over by an engine whose plan corrects it.

While such an engine lives, its optimizer's momentum is applied where it belongs:

before compression
    to the gradients of tensors whose compressor keeps a velocity
    (:mod:`comm_plan.compressors.momentum`), on each rank;
after averaging
    to the means of all others, and to the decay of all weights, just before the
    optimizer steps. Buffers are the optimizer's own ``momentum_buffer``.

During ``optimizer.step()`` itself such groups have neither momentum nor weight decay;
before and after it they show the user's, which schedulers may change and checkpoints
keep. A group without a tensor of the first kind is left to its optimizer. With all of a
tensor sent at once, both are the step of ``torch.optim.SGD``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from comm_plan.compressors.momentum import Momentum
from comm_plan.errors import InputError, RunError
from comm_plan.runtime.hooks import copyable, updates

REPLACED: dict[str, Any] = {"momentum": 0, "weight_decay": 0, "nesterov": False}
"""What groups have while the optimizer steps."""

MomentumOf = Callable[[nn.Parameter], Momentum]

logger = logging.getLogger("comm_plan")


@dataclass(frozen=True)
class ChangeOfSides:
    """What of the momentum goes where when the plan changes.

    Attributes:
        to_buffers: flat float32 [numel] by parameter, equal on all ranks, for the
            optimizer's buffer.
        to_velocities: velocities, the same, that take the optimizer's buffer over.
        before_compression: the parameters that get momentum there from then on.
        scale: of the loss, and so of velocities; the optimizer's buffers have none.
    """

    to_buffers: Mapping[nn.Parameter, torch.Tensor]
    to_velocities: Mapping[nn.Parameter, torch.Tensor]
    before_compression: Set[nn.Parameter]
    scale: float = 1.0


class TakenMomentum:
    """The momentum of ``optimizer`` while an engine applies it.

    Args:
        optimizer: the user's.

    Attributes:
        before_compression: the parameters whose gradients get it before they are
            compressed; the engine sets it.

    Raises:
        InputError: it is no SGD, or has options that cannot be taken over.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.before_compression: Set[nn.Parameter] = frozenset()
        _check(optimizer)
        self._optimizer = optimizer
        self._places = _places(optimizer)
        self._replaced: list[dict[str, Any]] = []
        self._change: ChangeOfSides | None = None
        self._hooks = [
            optimizer.register_step_pre_hook(copyable(self._before_step)),
            optimizer.register_step_post_hook(copyable(self._after_step)),
        ]

    def of(self, parameter: nn.Parameter) -> Momentum:
        """Return the momentum that the user wants for ``parameter`` now.

        None of a parameter that the optimizer does not have (yet): another one may
        apply its own.
        """
        group = self._group_of(parameter)
        if group is None:
            return Momentum()
        return Momentum(group["momentum"], group["nesterov"])

    def require(self, optimizer: torch.optim.Optimizer) -> None:
        """Check that no other optimizer updates what this one has.

        Raises:
            RunError: it does.
        """
        if optimizer is not self._optimizer and updates(optimizer, self._places):
            raise RunError(
                f"another optimizer ({type(optimizer).__name__}) than the engine's "
                "updates parameters of a plan with momentum correction, so that "
                "momentum may be applied twice: give parallelize that one"
            )

    def after_step(self, change: ChangeOfSides) -> None:
        """Let momentum change sides once the optimizer has taken the means it has."""
        self._change = change

    def settle(self) -> None:
        """Let momentum change sides now, if it was to: no step came in between.

        Nor does the step follow that failed: groups show the user's options again.
        """
        change = self._give_back()
        if change is None:
            return
        for parameter, velocity in change.to_velocities.items():
            state = self._optimizer.state.get(parameter, {})
            buffer = state.pop("momentum_buffer", None)
            if buffer is not None:
                velocity.copy_(buffer.flatten()).mul_(change.scale)
        self.before_compression = change.before_compression

    def close(self) -> None:
        """Leave the optimizer as it was, with what was to go to its buffers."""
        for hook in self._hooks:
            hook.remove()
        self._give_back()

    def _give_back(self) -> ChangeOfSides | None:
        """Restore the groups, fill the buffers; return what was to change, if any."""
        self._restore()
        change, self._change = self._change, None
        if change is not None:
            for parameter, velocity in change.to_buffers.items():
                if self.of(parameter).factor:
                    self._fill_buffer(parameter, velocity / change.scale)
        return change

    def _group_of(self, parameter: nn.Parameter) -> dict[str, Any] | None:
        if parameter not in self._places:  # add_param_group may have been called
            self._places = _places(self._optimizer)
        place = self._places.get(parameter)
        return None if place is None else self._optimizer.param_groups[place]

    def _before_step(
        self, optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any
    ) -> None:
        _, *given = arguments  # the optimizer comes first
        if any(a is not None for a in (*given, keywords.get("closure"))):
            raise RunError(
                "an optimizer step with a closure has no gradients before it: with "
                "momentum correction call backward first, then step()"
            )
        done = len(self._replaced)  # a step that failed is tried again
        for group in optimizer.param_groups[done:]:
            left_alone = self.before_compression.isdisjoint(group["params"])
            if group["momentum"] and not left_alone:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._accelerate(parameter, group)
                self._replaced.append({key: group[key] for key in REPLACED})
                group.update(REPLACED)
            else:
                self._replaced.append({})

    def _after_step(
        self, optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any
    ) -> None:
        self.settle()

    @torch.no_grad()
    def _fill_buffer(self, parameter: nn.Parameter, velocity: torch.Tensor) -> None:
        """Make the buffer ``velocity`` and what the weight's decay has put there."""
        state, group = self._optimizer.state[parameter], self._group_of(parameter)
        assert group is not None
        moved = torch.empty_like(parameter).copy_(velocity.view(parameter.shape))
        of_decay = state.get("momentum_buffer") if group["weight_decay"] else None
        state["momentum_buffer"] = moved if of_decay is None else moved.add_(of_decay)

    def _restore(self) -> None:
        for group, kept in zip(
            self._optimizer.param_groups, self._replaced, strict=False
        ):
            group.update(kept)
        self._replaced = []

    def _accelerate(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        """Apply momentum to the mean, unless it has it, and to the weight's decay."""
        assert parameter.grad is not None
        has_it = parameter in self.before_compression
        decay = group["weight_decay"]
        if has_it and not decay:
            return
        late = torch.zeros_like(parameter.grad) if has_it else parameter.grad
        if decay:
            late = late.add(parameter.detach(), alpha=decay)
        state = self._optimizer.state[parameter]
        buffer = state.get("momentum_buffer")
        if buffer is None:
            buffer = state["momentum_buffer"] = torch.zeros_like(late)
        momentum = Momentum(group["momentum"], group["nesterov"])
        step = momentum.accelerate(buffer, late)
        if has_it:
            parameter.grad.add_(step)
        else:
            parameter.grad.copy_(step)


def can_be_corrected(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether ``optimizer`` has momentum that an engine can take over."""
    try:
        _check(optimizer)
    except InputError:
        return False
    return any(group["momentum"] for group in optimizer.param_groups)


def _places(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, int]:
    """Return the group of every parameter, by its index."""
    return {
        parameter: index
        for index, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
    }


def _check(optimizer: torch.optim.Optimizer) -> None:
    name = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.SGD):
        raise InputError(
            f"the plan corrects momentum, which is right for SGD only, not {name}: "
            "solve again without --momentum-correction, or tune with this optimizer"
        )
    for option in ("dampening", "maximize", "fused"):
        if any(group.get(option) for group in optimizer.param_groups):
            raise InputError(
                f"momentum correction knows no {option} of {name}: leave it out, or "
                "solve again without --momentum-correction"
            )


def taken_over(
    parameters: Container[nn.Parameter], optimizer: torch.optim.Optimizer | None
) -> TakenMomentum:
    """Return the momentum of ``optimizer``, for a plan that corrects it.

    Args:
        parameters: of the plan.
        optimizer: whose.

    Raises:
        InputError: it is not given, has none of ``parameters``, or no momentum that can
            be taken over.
    """
    if optimizer is None:
        raise InputError(
            "the plan corrects momentum, so the engine has to take over that of the "
            "optimizer: pass optimizer=optimizer"
        )
    if not updates(optimizer, parameters):
        raise InputError(
            "the plan corrects momentum, and the optimizer that was given has no "
            "parameter of the model: give the one that updates it"
        )
    momentum = TakenMomentum(optimizer)
    factors = sorted({str(group["momentum"]) for group in optimizer.param_groups})
    logger.info(
        "momentum %s of the optimizer is applied before compression, and not again by "
        "its step",
        ", ".join(factors),
    )
    return momentum
