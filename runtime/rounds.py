"""Rounds of local steps: between two exchanges every rank trains alone.

A round begins where all ranks are. Each makes some optimizer steps by its own
gradients; then how far it has come, the outer gradient ``begin - now``, is averaged by
the plan's buckets as gradients are, compression and residuals included, and an outer
SGD takes all of them to where the next round begins:

* learning rate 1, no momentum: the mean of the ranks, which is local SGD (Stich, "Local
  SGD Converges Fast and Communicates Little"; compressed with error feedback: Basu et
  al., "Qsparse-local-SGD");
* learning rate 0.7, Nesterov momentum 0.9: DiLoCo (Douillard et al.).

What the optimizer remembers, such as momentum, stays each rank's own.

Two copies of the parameters are kept besides: where the round began, and the outer
gradient; with momentum a third.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from comm_plan.errors import InputError, RunError
from comm_plan.plans import LocalSteps, Plan
from comm_plan.plans.compression import OUTER_MOMENTUM
from comm_plan.runtime.hooks import copyable
from comm_plan.runtime.state import Remembered

_BUFFER = "momentum_buffer"
"""Where ``torch.optim.SGD`` keeps it."""


class Rounds:
    """The rounds of one engine.

    Args:
        asked: how long they are, and the outer optimizer.
        parameters: the model's, by name.
        optimizer: the user's, whose steps count. Its own hooks tell of them: those of
            all optimizers must not change while one runs, as a round's end takes.

    Attributes:
        begins: where the round began, by name: parameters of their own, whose ``.grad``
            is the outer gradient.
        taken: how many steps of this round are done.
    """

    def __init__(
        self,
        asked: LocalSteps,
        parameters: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self.taken = 0
        self.begins = {
            name: nn.Parameter(parameter.detach().clone())
            for name, parameter in parameters.items()
        }
        self._pairs = [(self.begins[name], p) for name, p in parameters.items()]
        self._every = asked.every
        self._optimizer = optimizer
        self._outer = torch.optim.SGD(
            list(self.begins.values()),
            lr=asked.learning_rate,
            momentum=asked.momentum,
            nesterov=asked.momentum > 0,
        )

    @contextmanager
    def counted(self, at_end: Callable[[], None]) -> Iterator[None]:
        """Count the optimizer's steps within; call ``at_end`` when a round is over.

        A round begins where its first step does: parameters may have been loaded since
        the last one.
        """

        def begin(*arguments: object) -> None:
            if self.taken == 0:
                with torch.no_grad():
                    for place, parameter in self._pairs:
                        place.copy_(parameter)

        def count(*arguments: object) -> None:
            self.taken += 1
            if self.taken >= self._every:
                at_end()

        hooks = (
            self._optimizer.register_step_pre_hook(copyable(begin)),
            self._optimizer.register_step_post_hook(copyable(count)),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def require(self, optimizer: torch.optim.Optimizer) -> None:
        """Check that ``optimizer``, which steps, is the one whose steps are counted.

        Raises:
            RunError: it is another one.
        """
        if optimizer is not self._optimizer:
            raise RunError(
                f"local steps: another optimizer ({type(optimizer).__name__}) than the "
                "one whose steps are counted updates the model, and what it does after "
                "the end of a round is never averaged: train with one, and give it to "
                "parallelize(..., optimizer=...)"
            )

    def measure(self) -> None:
        """Make the outer gradients: how far this rank has come, backwards."""
        with torch.no_grad():
            for place, parameter in self._pairs:
                place.grad = place - parameter

    def end(self, *, undone: bool = False) -> None:
        """Go to where the next round begins, by the means of the outer gradients.

        Args:
            undone: the exchange was refused, and there are none: the next one begins
                where this one did. What the optimizer remembers stays, but inf and NaN.
        """
        if undone:
            self._forget_nonfinite()
        self._outer.step()
        with torch.no_grad():
            for place, parameter in self._pairs:
                parameter.copy_(place)
        self._outer.zero_grad()
        self.taken = 0

    def _forget_nonfinite(self) -> None:
        """Let the optimizer begin anew where it remembers inf or NaN.

        Else the next rounds would be so.
        """
        for parameter, state in list(self._optimizer.state.items()):
            tensors = (v for v in state.values() if isinstance(v, torch.Tensor))
            if not all(tensor.isfinite().all() for tensor in tensors):
                del self._optimizer.state[parameter]

    def state(self) -> Remembered:
        """Return the outer momentum, equal on all ranks."""
        states = self._outer.state
        return {
            name: {OUTER_MOMENTUM: states[place][_BUFFER]}
            for name, place in self.begins.items()
            if states.get(place, {}).get(_BUFFER) is not None
        }

    def load_state(self, remembered: Remembered) -> None:
        """Remember this and nothing else; a round begins."""
        self.taken = 0
        self._outer.state.clear()
        for name, place in self.begins.items():
            buffer = remembered.get(name, {}).get(OUTER_MOMENTUM)
            if buffer is not None:
                self._outer.state[place][_BUFFER] = buffer.to(place, copy=True)


def rounds_of(
    plan: Plan,
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer | None,
    scaler: torch.amp.GradScaler | None,
) -> Rounds | None:
    """Return the rounds that ``plan`` wants; None: it has no local steps.

    Raises:
        InputError: the steps of the optimizer cannot be counted.
    """
    asked = plan.local_steps
    if asked is None:
        return None
    if optimizer is None:
        raise InputError(
            f"by this plan the ranks train alone for {asked.every} steps, so the "
            "engine has to count those of the optimizer: pass optimizer=optimizer"
        )
    if scaler is not None and scaler.is_enabled():
        raise InputError(
            "local steps: a GradScaler skips steps of one rank that others make, so "
            "that they no longer meet: train in bfloat16, which needs none"
        )
    return Rounds(asked, parameters, optimizer)
