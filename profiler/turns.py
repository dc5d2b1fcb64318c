"""Measure again and again, for a machine is not equally fast all the time.

What is compared is measured within one turn, and of all turns the median is taken: what
slows the machine for longer slows all of a turn alike, and what slows it for a moment
spoils one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from comm_plan.transports.base import Transport

Measured = TypeVar("Measured")

TURNS = (4, 16)
"""Fewest, and most where they are short."""

LONG_ENOUGH_S = 1.0
"""Many short turns take no longer than this."""


def in_turns(ranks: Transport, turn: Callable[[int], Measured]) -> list[Measured]:
    """Return what each turn measured; a collective call.

    Args:
        ranks: take equally many turns.
        turn: measures once; told how many turns there were.
    """
    begin_s = time.perf_counter()
    measured: list[Measured] = []
    while True:
        measured.append(turn(len(measured)))
        if len(measured) < TURNS[0]:
            continue
        late = time.perf_counter() - begin_s > LONG_ENOUGH_S
        if ranks.broadcast_object(late or len(measured) == TURNS[1]):
            return measured
