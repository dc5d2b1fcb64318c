"""Numbers as people read them: three significant digits and a unit."""

from __future__ import annotations

import math

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "ps": 1e-12}


def seconds(value_s: float) -> str:
    """Return a duration in s, ms, us, ns or ps."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")):
        if abs(value_s) >= 0.9995 * scale:
            return f"{_three_digits(value_s / scale)} {unit}"
    return f"{_three_digits(value_s / 1e-12)} ps" if value_s else "0 s"


def about(value_s: float, error_s: float | None) -> str:
    """Return a duration with how far it may be off, if that is known."""
    if error_s is None:
        return seconds(value_s)
    return f"{seconds(value_s)} ± {seconds(error_s)}"


def nbytes(value: float) -> str:
    """Return a size in GB, MB, kB or B; 1 GB is 1e9 bytes."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= 0.9995 * scale:
            return f"{_three_digits(value / scale)} {unit}"
    return f"{value:.0f} B"


def bits_per_s(value: float) -> str:
    """Return the speed of a link in Gbit/s, Mbit/s or kbit/s."""
    for scale, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if value >= 0.9995 * scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value / 1e3:.4g} kbit/s"


def percent(value: float) -> str:
    """Return a share of one in percent."""
    return f"{_three_digits(100 * value)} %"


def deviation(value: float, digits: int = 1) -> str:
    """Return a share of one in percent with its sign: ``+2.5%``, never ``-0.0%``."""
    return f"{round(value, digits + 2) + 0.0:+.{digits}%}"


def shows(value: float) -> bool:
    """Return whether a share of one is any :func:`percent` but 0.00."""
    return abs(value) >= 0.5e-4


def times(value: float) -> str:
    """Return a ratio such as ``1.25x``."""
    return f"{_three_digits(value)}x"


def ticks(end_s: float, at_most: int) -> list[tuple[float, str]]:
    """Return round times from 0 to ``end_s`` with their labels.

    Args:
        end_s: the end of the axis.
        at_most: how many ticks there is room for after the one at 0, two or more.
    """
    power = 10.0 ** math.floor(math.log10(end_s / at_most))
    for step in (factor * power for factor in (1, 2, 5, 10, 20)):
        count = math.floor(end_s / step * (1 + 1e-9))
        if count <= at_most:
            break
    return [(i * step, round_seconds(i * step)) for i in range(count + 1)]


def round_seconds(value_s: float) -> str:
    """Return a round duration, such as a tick's, with all its digits: ``250.5 ms``."""
    _, unit = seconds(value_s).split()
    return f"{value_s / _SECONDS[unit]:.12g} {unit}"


def counted(count: int, noun: str) -> str:
    """Return how many there are, such as ``1 rank`` or ``2 ranks``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _three_digits(value: float) -> str:
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f}"
