"""The learning rate over a run: a linear warm-up, times a decay.

Both multiply the optimizer's own rate and are functions of the place in the data, in
epochs and parts of them. So a run that is resumed has the rate of one that was never
interrupted with nothing to restore, also on another number of ranks, whose epochs have
another number of steps. PyTorch's schedulers count steps and would be wrong there.

====================  =============================================================
``constant``          no decay
``step:80,120:0.1``   times 0.1 after 80 and again after 120 epochs
``every:25:0.5``      times 0.5 after each 25 epochs (VGC paper, section 6.1)
``cosine``            half a cosine, to 0 at the end of the run
``poly:0.5``          (1 - part of the run)^0.5 (TernGrad paper, section 4)
====================  =============================================================

The last number may be left out; these are what it is then.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from comm_plan.errors import InputError


class Decay(Protocol):
    """Part of the rate that is left after ``epoch`` epochs of a run of ``end``."""

    def __call__(self, epoch: float, end: float) -> float:
        """Return a factor of at least 0."""


@dataclass(frozen=True)
class Constant:
    """No decay."""

    def __call__(self, epoch: float, end: float) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Steps:
    """Times ``factor`` after each of ``epochs``."""

    epochs: tuple[float, ...]
    factor: float = 0.1

    def __call__(self, epoch: float, end: float) -> float:
        """Return the factor to the power of how many are over."""
        return math.pow(self.factor, sum(epoch >= at for at in self.epochs))


@dataclass(frozen=True)
class Every:
    """Times ``factor`` after each ``epochs`` epochs."""

    epochs: float
    factor: float = 0.5

    def __call__(self, epoch: float, end: float) -> float:
        """Return the factor to the power of how often they are over."""
        over = math.floor(epoch / self.epochs + 1e-9)  # 0.3 // 0.1 is 2
        return math.pow(self.factor, over)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine, from 1 to 0."""

    def __call__(self, epoch: float, end: float) -> float:
        """Return it for this part of the run."""
        return (1 + math.cos(math.pi * min(epoch / end, 1.0))) / 2


@dataclass(frozen=True)
class Polynomial:
    """What is left of the run, to a power."""

    power: float = 0.5

    def __call__(self, epoch: float, end: float) -> float:
        """Return it."""
        return math.pow(max(0.0, 1 - epoch / end), self.power)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(_number(part) for part in text.split(","))


def _number(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError(text)
    return number


DECAYS: dict[str, tuple[Callable[..., Decay], tuple[Callable[[str], Any], ...]]] = {
    "constant": (Constant, ()),
    "step": (Steps, (_numbers, _number)),
    "every": (Every, (_number, _number)),
    "cosine": (Cosine, ()),
    "poly": (Polynomial, (_number,)),
}
"""Each by the name that users write, with how to read the numbers behind it."""


@dataclass(frozen=True)
class LearningRate:
    """What to multiply the optimizer's own rate with.

    Attributes:
        warmup_epochs: the rate rises linearly from almost 0 in so many first epochs.
        decay: how it falls; while it rises too.
    """

    warmup_epochs: float = 0.0
    decay: Decay = Constant()

    @classmethod
    def parse(cls, decay: str, warmup_epochs: float = 0.0) -> LearningRate:
        """Return what ``step:80,120`` and the like mean.

        Raises:
            InputError: it means nothing.
        """
        name, *words = decay.split(":")
        try:
            make, readers = DECAYS[name]
            values = [read(word) for read, word in zip(readers, words, strict=False)]
            if len(words) > len(readers):
                raise ValueError(decay)
            return cls(warmup_epochs, make(*values))
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"--lr-schedule {decay!r}: write constant, step:80,120[:0.1], "
                "every:25[:0.5], cosine or poly[:0.5]; numbers are epochs and factors "
                "above 0"
            ) from None

    def factor(self, epoch: float, end: float, step_epochs: float) -> float:
        """Return the factor of one step.

        Args:
            epoch: epochs that are done when the step begins, with a fraction.
            end: epochs of the whole run, with a fraction.
            step_epochs: the part of an epoch that a step takes.
        """
        done = epoch + step_epochs
        warm = min(1.0, done / self.warmup_epochs) if self.warmup_epochs else 1.0
        return warm * self.decay(epoch, end)


UNCHANGED = LearningRate()
"""The optimizer's own rate, from the first step to the last."""
