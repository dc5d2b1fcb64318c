"""How much of its processors' time a virtual machine did not get."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

STAT = Path("/proc/stat")
"""Linux's account of processor time; proc(5)."""

ACCOUNTS = 8
"""The first of its columns exclude each other: user, nice, system, idle, ..., steal."""


def watch() -> Callable[[], float | None]:
    """Return what says which share was given to other machines from now on.

    That share is of all processors' time, idle time included; None where the system
    does not tell.
    """
    before = _columns()

    def share() -> float | None:
        after = _columns()
        if before is None or after is None:
            return None
        passed = [now - then for now, then in zip(after, before, strict=True)]
        whole = sum(passed)
        return max(0.0, passed[-1] / whole) if whole > 0 else 0.0

    return share


def _columns() -> list[int] | None:
    try:
        first = STAT.read_text(encoding="ascii").partition("\n")[0].split()
    except OSError:
        return None
    columns = first[1 : 1 + ACCOUNTS]
    return [int(column) for column in columns] if len(columns) == ACCOUNTS else None
