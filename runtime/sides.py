"""Momentum changes sides where of two plans in turn only one corrects it.

One that corrects it applies momentum before compression, on each rank, to its own
gradients; else the optimizer applies it after averaging
(:mod:`~comm_plan.runtime.momentum`). What has been built up on one side goes on on the
other, and so does what waits in residuals: what waits behind momentum has had its own,
what waits before it has not.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from comm_plan.compressors.base import RESIDUAL, VELOCITY
from comm_plan.plans.parameters import trainable
from comm_plan.runtime.momentum import ChangeOfSides, TakenMomentum
from comm_plan.runtime.state import Remembered
from comm_plan.transports.base import Transport


def velocities(
    model: nn.Module, remembered: Remembered
) -> dict[nn.Parameter, torch.Tensor]:
    """Return the velocities of momentum correction in ``remembered``, flat; shared."""
    return {
        parameter: remembered[name][VELOCITY]
        for name, parameter in trainable(model).items()
        if VELOCITY in remembered.get(name, {})
    }


def change_of_sides(
    model: nn.Module,
    momentum: TakenMomentum,
    before: Mapping[nn.Parameter, torch.Tensor],
    after: Mapping[nn.Parameter, torch.Tensor],
    remembered: Remembered,
    transport: Transport,
    scale: float,
) -> ChangeOfSides:
    """Return what of the momentum goes where; every rank calls it.

    Args:
        model: the model.
        momentum: of its optimizer.
        before: this rank's velocities under the last plan, flat.
        after: those under the new one, which are to be filled.
        remembered: by this rank under the new plan; its residuals are scaled to where
            they wait now.
        transport: the ranks.
        scale: of the loss, and so of velocities.
    """
    to_buffers = {}
    for name, parameter in trainable(model).items():
        if parameter in before and parameter not in after:
            mean = before[parameter].to(parameter.device, copy=True)
            transport.all_reduce(mean)
            to_buffers[parameter] = mean.div_(transport.world_size)
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
