"""Keeps inf and NaN out of compressors, which would remember them for ever.

A gradient whose squares overflow together (a norm above 1.8e19) counts as inf: it is
finite still, but the second moments of VGC and sums with a residual would not be. So
the one figure that is looked at is the sum of its squares.

On the CPU a gradient is looked at when it arrives. On CUDA the host must not wait for
the device inside a hook, so the decision is made there: a gradient that is not finite
is replaced by zeros on the device, and the flag is read with the step's status. Those
of a bucket that are taken together are looked at, and replaced, together.
"""

from __future__ import annotations

import math

import torch


class Guard:
    """What one rank knows of the gradients of one step.

    Attributes:
        names: parameters whose gradients were not finite, as far as the host knows.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._finite: list[torch.Tensor] = []

    def admit(
        self, name: str, gradient: torch.Tensor, second_moment: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return gradient and second moment, both zero if the gradient is not finite.

        Args:
            name: the parameter's, or of all whose gradients lie end to end.
            gradient: [numel].
            second_moment: [numel], where there is one.
        """
        if gradient.device.type == "cpu":
            if math.isfinite(_size(gradient, second_moment).item()):
                return gradient, second_moment
            self.names.append(name)
            zero = torch.zeros_like(gradient)
            return zero, None if second_moment is None else zero
        finite = _size(gradient, second_moment) < math.inf  # NaN is not, either
        self._finite.append(finite)
        if second_moment is not None:
            second_moment = torch.where(finite, second_moment, 0)
        return torch.where(finite, gradient, 0), second_moment

    def flag(self, rank: int, device: torch.device) -> torch.Tensor:
        """Return int32 [1]: ``rank + 1`` if a gradient was not finite, else 0."""
        flag = (rank + 1) * bool(self.names)
        flags = torch.full((1,), flag, dtype=torch.int32, device=device)
        if self._finite:
            bad = ~torch.stack(self._finite).all().to(device)
            flags.masked_fill_(bad, rank + 1)
        return flags


def _size(gradient: torch.Tensor, second_moment: torch.Tensor | None) -> torch.Tensor:
    """Return a number that is finite if, and only if, both may be remembered."""
    size: torch.Tensor
    if gradient.is_cuda:  # whose dot takes no more than 2^31 elements
        size = torch.linalg.vector_norm(gradient, dtype=torch.float32)
    else:
        values = gradient.float()
        size = values.dot(values)
    return size if second_moment is None else size + second_moment.sum()
