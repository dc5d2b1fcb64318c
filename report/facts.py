"""What a summary consists of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from comm_plan.plans.link import EmulatedLink
from comm_plan.plans.local import LocalSteps

Fact: TypeAlias = tuple[str, str]
"""What it is, and its value with its unit."""


def emulated(link: EmulatedLink | None) -> Iterator[Fact]:
    """Yield that the network was no real one, if it was not."""
    if link is not None:
        yield "emulated link", str(link)


def local(steps: LocalSteps) -> Fact:
    """Return how long the ranks train alone, and how they go on from there."""
    if (steps.learning_rate, steps.momentum) == (1, 0):
        return "local steps", f"{steps.every}, then the mean of the ranks"
    return "local steps", (
        f"{steps.every}, then an outer SGD: learning rate {steps.learning_rate:g}, "
        f"Nesterov momentum {steps.momentum:g}"
    )
