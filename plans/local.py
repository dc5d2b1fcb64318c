"""Local steps: ranks train alone for a while, then average how far they have come."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from comm_plan.plans.document import Value


class LocalSteps(Value):
    """Every rank makes ``every`` optimizer steps by its own gradients, then they meet.

    What the plan's buckets carry is how far each rank has come from where the round
    began: the outer gradient. The next round begins where an outer SGD with
    ``learning_rate`` and Nesterov ``momentum`` goes from there: 1 and 0 make it the
    mean of the ranks (local SGD), 0.7 and 0.9 are DiLoCo's.

    It is another algorithm than averaging the gradients of every step: what it does to
    accuracy depends on the task and on ``every``.
    """

    every: Annotated[int, Field(ge=2, le=10_000)]
    learning_rate: Annotated[float, Field(gt=0, le=10)] = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0


def steps_of(local: LocalSteps | None) -> int:
    """Return how many steps there are to an exchange; 1 without local ones."""
    return 1 if local is None else local.every
