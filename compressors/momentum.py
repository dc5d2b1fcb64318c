"""Momentum correction: momentum before the residual instead of after the mean.

Lin et al., "Deep Gradient Compression", ICLR 2018, sections 3.1 to 3.3. An optimizer's
momentum repeats a late gradient as if it were new, and a gradient that waits lacks the
momentum it would have had meanwhile. So every rank applies momentum m to its own
gradient g, before what is not sent is kept::

    u = m u + g             the velocity
    r = r + u               the residual; with Nesterov: r + g + m u
    send the largest of r, and set them to zero

and the optimizer applies none (:mod:`comm_plan.runtime.momentum`). Where what was sent
had waited, u is set to zero too (factor masking): its momentum is stale.

Differences from the paper: it masks all that was sent. The velocity of what had not
waited is not stale and goes on, so that a tensor of which everything is sent gets the
step of ``torch.optim.SGD``. What gTop-k's tree or SparDL drops on the way counts as
sent: it waits in a residual again, but its velocity begins anew. Strom and the hybrid,
which send a part of an element and keep the rest, mask nothing: momentum would never
build up. VGC, whose criterion is made for gradients, has momentum after the mean;
before it, it would send many more elements.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Momentum:
    """The momentum of a parameter, as ``torch.optim.SGD`` defines it."""

    factor: float = 0.0
    nesterov: bool = False

    def accelerate(
        self, velocity: torch.Tensor, gradient: torch.Tensor
    ) -> torch.Tensor:
        """Take ``gradient`` [n] into ``velocity`` [n]; return the step [n].

        Without Nesterov that is the velocity itself, not a copy; without momentum it is
        the gradient, and the velocity stays what it was.
        """
        if not self.factor:
            return gradient
        torch.add(gradient, velocity, alpha=self.factor, out=velocity)
        if self.nesterov:
            return gradient.add(velocity, alpha=self.factor)
        return velocity


def mask(
    velocity: torch.Tensor,
    step: torch.Tensor,
    values: torch.Tensor,
    indices: torch.Tensor,
) -> None:
    """Clear ``velocity`` [n] where what was sent is more than this step's own.

    Args:
        velocity: changed in place.
        step: [n] what :meth:`Momentum.accelerate` returned.
        values: [k] what was sent.
        indices: [k] where.
    """
    stale = values != step.index_select(0, indices)
    left = velocity.index_select(0, indices).masked_fill_(stale, 0)
    velocity.scatter_(0, indices.long(), left)
