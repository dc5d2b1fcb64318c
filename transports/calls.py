"""Which blocking calls are under way and for how long, for engines that never time out.

MPI waits in a collective for as long as it takes, and nothing can be done in the thread
that waits. So the thread of :mod:`~comm_plan.transports.liveness` counts its beats
while a call is under way: after the whole job was suspended none looks late.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(eq=False)
class Call:
    """A call under way.

    Attributes:
        operation: what it does, such as ``all-reduce``.
        beats: how many beats it has seen.
    """

    operation: str
    beats: int = 0


class Calls:
    """The calls of one rank, of all its threads and communicators.

    Args:
        timeout_s: a call that takes longer will never end.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._under_way: set[Call] = set()

    @contextmanager
    def under_way(self, operation: str) -> Iterator[None]:
        """Count the block as a call."""
        call = Call(operation)
        self._under_way.add(call)
        try:
            yield
        finally:
            self._under_way.discard(call)

    def beat(self) -> Call | None:
        """Make all one beat older; return the oldest."""
        calls = self._under_way.copy()
        for call in calls:
            call.beats += 1
        return max(calls, key=lambda call: call.beats, default=None)
