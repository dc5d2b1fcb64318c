"""What a summary consists of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from comm_plan.plans.link import EmulatedLink

Fact: TypeAlias = tuple[str, str]
"""What it is, and its value with its unit."""


def emulated(link: EmulatedLink | None) -> Iterator[Fact]:
    """Yield that the network was no real one, if it was not."""
    if link is not None:
        yield "emulated link", str(link)
