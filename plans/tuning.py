"""What ``tune`` found: the plans that it tried, predicted and measured; its advice."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from comm_plan.plans.document import (
    Document,
    Name,
    PositiveCount,
    Ranks,
    Seconds,
    Seed,
    Sentence,
    Value,
)
from comm_plan.plans.link import EmulatedLink
from comm_plan.plans.plan import PlannedModel

TUNED_FILE = "plan.json"
"""What the plan to run is called in the folder of a tuning."""

TUNING_FILE = "tuning.json"
"""What the evidence is called in the folder of a tuning."""

Objective = Literal["time", "loss"]

LARGEST_LOSS = 1e300
"""A larger one in a curve stands for one that was not finite: documents hold no NaN."""


class Round(Value):
    """Iterations of a plan in one round without warm-up, the mean of the ranks."""

    iterations: PositiveCount
    median_s: Seconds
    p95_s: Seconds


class Curve(Value):
    """A training from the same start: a running mean of its loss, against seconds.

    ``seconds`` and ``losses`` are equally long; the losses are means over all ranks.
    """

    seed: Seed
    seconds: tuple[Seconds, ...]
    losses: tuple[float, ...]

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if len(self.seconds) != len(self.losses):
            raise ValueError(
                f"{len(self.seconds)} seconds and {len(self.losses)} losses: give as "
                "many"
            )
        return self


class Trial(Value):
    """One plan, tried on the user's own model.

    ``plan`` is the plan's file beside this document. ``rounds`` are those that it was
    in; ``measured_s`` is the median of them all, times what the baseline took in all
    rounds over what it took in these, so that one clock measures all plans.
    ``curves`` are there when plans are judged by loss. ``local``: its ranks train alone
    for some steps; then it is not ``lossless`` either.
    """

    name: Name
    plan: Name
    lossless: bool
    local: bool = False
    predicted_s: Seconds
    rounds: tuple[Round, ...] = ()
    measured_s: Seconds | None = None
    curves: tuple[Curve, ...] = ()


class Tuning(Document):
    """Trials of plans, the first one the baseline: the buckets of PyTorch DDP.

    ``not_tried`` says for other plans, by name, why they were not run. ``complete`` is
    false if the budget or the user ended the trials early.
    """

    SCHEMA: ClassVar[str] = "comm-plan/tuning"

    workload: Name
    model: PlannedModel
    backend: Name
    world_size: Ranks
    hosts: tuple[Name, ...] = ()
    emulated_link: EmulatedLink | None = None
    objective: Objective = "time"
    budget_s: Seconds
    took_s: Seconds
    complete: bool
    winner: Name
    advice: Sentence
    trials: Annotated[tuple[Trial, ...], Field(min_length=1)]
    not_tried: dict[Name, Sentence] = {}

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [trial.name for trial in self.trials]
        if len(set(names)) < len(names):
            raise ValueError(f"trials {names}: a name is there twice")
        if self.winner not in names:
            raise ValueError(f"winner {self.winner!r} is none of the trials {names}")
        return self

    def trial(self, name: str) -> Trial:
        """Return the trial of the plan called ``name``."""
        return next(trial for trial in self.trials if trial.name == name)
