"""Momentum changes sides where of two plans in turn only one corrects it.

One that corrects it applies momentum before compression, on each rank, to its own
gradients; else the optimizer applies it after averaging
(:mod:`~comm_plan.runtime.momentum`). What has been built up on one side goes on on the
other, and so does what waits in residuals: what waits behind momentum has had its own,
what waits before it has not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack

import torch
from torch import nn

from comm_plan.compressors.base import RESIDUAL, VELOCITY
from comm_plan.errors import RunError
from comm_plan.plans import Plan
from comm_plan.plans.parameters import named, trainable
from comm_plan.runtime.momentum import (
    ChangeOfSides,
    TakenMomentum,
    can_be_corrected,
    taken_over,
)
from comm_plan.runtime.state import Remembered
from comm_plan.transports.base import Transport

logger = logging.getLogger("comm_plan")


class EngineMomentum:
    """What an engine applies of its optimizer's momentum, from plan to plan.

    Args:
        model: the model.
        optimizer: what updates its parameters; None: it is not known.
        transport: the ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        transport: Transport,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._transport = transport
        self._taken: TakenMomentum | None = None
        self._is_corrected = False

    def wanted_by(self, plan: Plan, undo: ExitStack) -> TakenMomentum | None:
        """Return what ``plan`` wants applied before compression; None: nothing.

        Args:
            plan: to be executed, or not, after all.
            undo: leaves the optimizer as it is.

        Raises:
            InputError: it wants momentum of an optimizer that is not given, has no
                parameter of the model, or no momentum that can be taken over.
        """
        if not plan.momentum_correction:
            return None
        if self._taken is not None:
            return self._taken
        parameters = frozenset(trainable(self._model).values())
        momentum = taken_over(parameters, self._optimizer)
        undo.callback(momentum.close)
        return momentum

    def go_on(self, momentum: TakenMomentum | None) -> None:
        """Let ``momentum`` be applied, as the plan in execution now wants it."""
        self._taken = momentum or self._taken
        self._is_corrected = momentum is not None

    def begin(self, remembered: Remembered, scale: float) -> None:
        """Begin with the first plan.

        What the optimizer has built up so far goes on in the velocities, from the first
        step on, unless a state is loaded before.

        Args:
            remembered: what this rank keeps under it; velocities are filled.
            scale: of the loss, and so of velocities.
        """
        if self._taken is not None:
            own = velocities(self._model, remembered)
            self._taken.before_compression = own.keys()
            self._taken.after_step(ChangeOfSides({}, own, own.keys(), scale))

    def require(self, optimizer: torch.optim.Optimizer) -> None:
        """Check that no other optimizer updates parameters of the corrected one.

        Raises:
            RunError: one does.
        """
        if self._taken is not None and self._is_corrected:
            self._taken.require(optimizer)

    def require_taken(self) -> None:
        """Check that no means wait in ``.grad`` that momentum has gone into already.

        A lone gradient may be the one that begins this backward.

        Raises:
            RunError: some do, and momentum would go into them again.
        """
        if not self._is_corrected:
            return
        if sum(p.grad is not None for p in self._model.parameters()) > 1:
            raise RunError(
                "the means of the step before are still in .grad, and momentum has "
                "gone into them: step the optimizer before the next backward, or "
                "accumulate in engine.no_sync()"
            )

    def change_sides(
        self, before: Remembered, after: Remembered, scale: float, *, now: bool
    ) -> None:
        """Bring momentum to where the plan in execution applies it; all ranks call it.

        Args:
            before: what this rank remembered under the last plan.
            after: what it does now; velocities are filled, and residuals scaled to
                where they wait now.
            scale: of the loss, and so of velocities.
            now: at once; else once the optimizer has taken the means that it has.
        """
        had, has = velocities(self._model, before), velocities(self._model, after)
        if self._taken is None and had.keys() - has.keys():
            self._taken = self._to_give_back()
        if self._taken is None:
            return
        self._taken.after_step(self._change(self._taken, had, has, after, scale))
        if now:
            self.settle()

    def settle(self) -> None:
        """Let momentum change sides, even if the optimizer has not taken its means."""
        if not self._is_corrected:
            self.close()
        elif self._taken is not None:
            self._taken.settle()

    def close(self) -> None:
        """Leave the optimizer to itself; velocities go with the engine."""
        if self._taken is not None:
            self._taken.close()
            self._taken = None

    def _to_give_back(self) -> TakenMomentum | None:
        """Return that of the optimizer, whose own it will be; None: it cannot be."""
        if self._optimizer is not None and can_be_corrected(self._optimizer):
            return TakenMomentum(self._optimizer)
        if self._transport.rank == 0:
            logger.warning(
                "the state holds corrected momentum, which is lost: the plan corrects "
                "none, and the engine has no SGD optimizer with momentum to take it"
            )
        return None

    def _change(
        self,
        momentum: TakenMomentum,
        before: Mapping[nn.Parameter, torch.Tensor],
        after: Mapping[nn.Parameter, torch.Tensor],
        remembered: Remembered,
        scale: float,
    ) -> ChangeOfSides:
        """Return what of ``momentum`` goes where, of velocities before and after."""
        to_buffers = {}
        for name, parameter in named(self._model).items():
            if parameter in before and parameter not in after:
                mean = before[parameter].to(parameter.device, copy=True)
                self._transport.all_reduce(mean)
                to_buffers[parameter] = mean.div_(self._transport.world_size)
                remembered[name][RESIDUAL].mul_(1 - momentum.of(parameter).factor)
            elif parameter in after and parameter not in before:
                factor = momentum.of(parameter).factor
                if factor < 1:  # else there is no end to what it would add
                    remembered[name][RESIDUAL].div_(1 - factor)
        return ChangeOfSides(
            to_buffers=to_buffers,
            to_velocities={p: v for p, v in after.items() if p not in before},
            before_compression=after.keys(),
            scale=scale,
        )


def velocities(
    model: nn.Module, remembered: Remembered
) -> dict[nn.Parameter, torch.Tensor]:
    """Return the velocities of momentum correction in ``remembered``, flat; shared."""
    return {
        parameter: remembered[name][VELOCITY]
        for name, parameter in named(model).items()
        if VELOCITY in remembered.get(name, {})
    }
