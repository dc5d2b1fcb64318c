"""The plan: which gradients travel together, how compressed, by which collective."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, JsonValue, model_validator
from typing_extensions import Self

from comm_plan.plans.compression import CompressorSpec, Dense
from comm_plan.plans.compression.rows import Rows
from comm_plan.plans.document import (
    MAX_TENSORS,
    Document,
    Name,
    PositiveCount,
    Ranks,
    Seconds,
    Sentence,
    Value,
)
from comm_plan.plans.link import EmulatedLink
from comm_plan.plans.local import LocalSteps, steps_of
from comm_plan.plans.timing import Timing

TODAY = "threshold"
"""The solver of what people run without planning: PyTorch DDP's bucket sizes."""

WORTHWHILE = 0.01
"""A gain of a smaller share of the iteration time is called none."""


class Bucket(Value):
    """Tensors that are sent together, in ready order."""

    tensors: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_TENSORS)]
    compressor: CompressorSpec = Dense()
    collective: Name = "allreduce"

    @model_validator(mode="after")
    def _check(self) -> Self:
        allowed = self.compressor.collectives()
        if self.collective not in allowed:
            raise ValueError(
                f"compressor {self.compressor.kind} cannot use collective "
                f"{self.collective!r}: use {' or '.join(allowed)}"
            )
        _ = self.densities  # refuses another number
        return self

    @property
    def densities(self) -> tuple[float, ...]:
        """The share of each tensor that is sent, but in a warm-up of densities."""
        return self.compressor.densities(len(self.tensors))


class PlannedModel(Value):
    """The model that a plan is for."""

    name: Name
    fingerprint: Name


class Predicted(Value):
    """What the schedule model says of the plan.

    ``baselines`` maps the name of another solver to its predicted ``iteration_s``.
    ``extrapolated_from`` is the measured world size when the plan is for another one.
    ``timing`` says when what happens. ``error_s`` is how far ``iteration_s`` may be off
    (one standard deviation) because what it is made of scatters.
    """

    iteration_s: Seconds
    exposed_s: Seconds
    lower_bound_s: Seconds
    baselines: dict[Name, Seconds] = {}
    extrapolated_from: Ranks | None = None
    timing: Timing | None = None
    error_s: Seconds | None = None


class Inputs(Value):
    """Which profile and network the plan was computed from.

    ``batch_size`` is that of a rank when the profile was measured, ``threads`` what
    PyTorch had then, on CPUs.
    """

    profile_sha256: Name
    network_sha256: Name
    batch_size: PositiveCount | None = None
    threads: PositiveCount | None = None


class Plan(Document):
    """Buckets in launch order, every trainable tensor of the model in exactly one.

    ``emulated_link`` is the network's that it was computed for, if it has one. With
    ``momentum_correction`` the optimizer's momentum is applied before compression.
    With ``local_steps`` its buckets carry how far the ranks have come, no gradients.
    ``evidence`` says what is known of the accuracy under each method that it uses.
    ``asked`` is what the solver was asked for, where that differs from the defaults:
    fields of :class:`comm_plan.planner.Settings`.
    """

    SCHEMA: ClassVar[str] = "comm-plan/plan"

    solver: Name
    model: PlannedModel
    world_size: Ranks
    backend: Name
    buckets: Annotated[tuple[Bucket, ...], Field(min_length=1, max_length=MAX_TENSORS)]
    predicted: Predicted | None = None
    inputs: Inputs | None = None
    emulated_link: EmulatedLink | None = None
    momentum_correction: bool = False
    local_steps: LocalSteps | None = None
    evidence: tuple[Sentence, ...] = ()
    asked: dict[Name, JsonValue] = {}

    @model_validator(mode="after")
    def _check(self) -> Self:
        seen: set[str] = set()
        for bucket in self.buckets:
            for name in bucket.tensors:
                if name in seen:
                    raise ValueError(f"tensor {name} is in the plan twice")
                seen.add(name)
            problem = bucket.compressor.too_many_ranks(
                bucket.collective, self.world_size
            )
            if problem is not None:
                raise ValueError(problem)
            if self.local_steps is not None and _is_of_gradients(bucket.compressor):
                raise ValueError(
                    f"compressor {bucket.compressor.kind} is for gradients of single "
                    "batches: leave local_steps out"
                )
        if self.local_steps is not None and self.momentum_correction:
            raise ValueError(
                "with local steps the ranks' own optimizers apply momentum: leave "
                "momentum_correction out"
            )
        timing = self.predicted and self.predicted.timing
        if timing and len(timing.buckets) != len(self.buckets):
            raise ValueError(
                f"timing of {len(timing.buckets)} buckets, the plan has "
                f"{len(self.buckets)}"
            )
        return self

    @property
    def conditions(self) -> tuple[int, str, EmulatedLink | None]:
        """What plans must agree in for their predictions to be compared."""
        return self.world_size, self.backend, self.emulated_link

    @property
    def label(self) -> str:
        """The solver's name, and what was forced upon every bucket."""
        forced = self.asked.get("compressor")
        compressor = None if forced is None else str(forced)
        return labelled(self.solver, compressor, self.local_steps)

    @property
    def is_dense(self) -> bool:
        """Whether no bucket is compressed."""
        return all(bucket.compressor.lossless for bucket in self.buckets)

    @property
    def is_exact(self) -> bool:
        """Whether it averages every gradient as it is."""
        return self.is_dense and self.local_steps is None

    @property
    def round_steps(self) -> int:
        """How many steps the ranks make to an exchange."""
        return steps_of(self.local_steps)


def labelled(
    solver: str, compressor: str | None = None, local_steps: LocalSteps | None = None
) -> str:
    """Return what a plan is called, such as ``optimal, fp16, 4 local steps``.

    Args:
        solver: its name.
        compressor: what was forced upon every bucket; None: nothing was.
        local_steps: the rounds that were asked for; None: an exchange every step.
    """
    rounds = None if local_steps is None else f"{local_steps.every} local steps"
    return ", ".join(filter(None, (solver, compressor, rounds)))


def _is_of_gradients(spec: CompressorSpec) -> bool:
    """Return whether ``spec`` needs more of a gradient than its values."""
    return spec.needs_second_moments or isinstance(spec, Rows)


def load_plan(path: str) -> Plan:
    """Read the plan in the file at ``path``.

    Raises:
        DocumentError: the file is missing or no valid plan.
    """
    return Plan.load(path)


def as_plan(plan: Plan | str) -> Plan:
    """Return ``plan``, or the one in the file at that path.

    Raises:
        DocumentError: the file is missing or no valid plan.
    """
    return plan if isinstance(plan, Plan) else load_plan(plan)
