"""Axes of charts: from values to places, with round ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Label = Callable[[float], str]

LINEAR_STEPS, LOGARITHMIC_STEPS, ORDINAL_STEPS = 6, 7, 12
"""How many steps between ticks there is room for, about."""

_SAME = 1e-9
_SMALLEST = 1e-290
"""A logarithmic axis goes no further down: powers below would be 0."""


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        label: what it shows.
        low: value at its start.
        high: value at its end, above ``low``.
        ticks: values that are marked, and their labels.
        log: whether it is logarithmic.
    """

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def at(self, value: float) -> float:
        """Return where ``value`` is: 0 at the start, 1 at the end."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(value) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)

    def shows(self, value: float) -> bool:
        """Return whether ``value`` can be placed at all."""
        return not self.log or value >= _SMALLEST


def linear(
    label: str,
    values: Iterable[float],
    name: Label,
    *,
    from_zero: bool = True,
) -> Axis:
    """Return a linear axis that holds ``values``.

    Args:
        label: what it shows.
        values: what it must hold.
        name: label of a tick.
        from_zero: it starts at 0 unless a value is below.
    """
    found = [*values, 0.0] if from_zero else list(values) or [0.0]
    low, high = min(found), max(found)
    if high - low <= _SAME * max(abs(low), abs(high)):
        high = low + (abs(low) or 1.0)
    step = _step((high - low) / LINEAR_STEPS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple((i * step, name(i * step)) for i in range(first, last + 1))
    return Axis(label, first * step, last * step, ticks)


def logarithmic(
    label: str,
    values: Iterable[float],
    name: Label,
    *,
    base: int = 10,
) -> Axis:
    """Return a logarithmic axis that holds those of ``values`` that are above 0.

    Args:
        label: what it shows.
        values: what it must hold.
        name: label of a tick.
        base: ticks are at its powers.
    """
    found = [value for value in values if value >= _SMALLEST] or [1.0]
    first = math.floor(math.log(min(found), base) + 1e-9)
    last = math.ceil(math.log(max(found), base) - 1e-9)
    last = max(last, first + 1)
    stride = math.ceil((last - first) / LOGARITHMIC_STEPS)
    powers = range(first, last + 1)
    ticks = tuple((float(base) ** i, name(float(base) ** i)) for i in powers[::stride])
    return Axis(label, float(base) ** first, float(base) ** last, ticks, log=True)


def ordinal(label: str, count: int) -> Axis:
    """Return an axis of the whole numbers from 0 to below ``count``."""
    stride = math.ceil(count / ORDINAL_STEPS)
    ticks = tuple((float(i), str(i)) for i in range(0, count, stride))
    return Axis(label, -0.5, count - 0.5, ticks)


def _step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    factors = (1, 2, 5, 10)
    return next(f * power for f in factors if f * power >= least * (1 - 1e-9))
