"""The run record: what a training run under a plan really did."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from comm_plan.plans.document import Document, Nbytes, Seconds, Value
from comm_plan.plans.link import EmulatedLink
from comm_plan.plans.timing import Timing


class IterationTimes(Value):
    """Measured iteration times, warm-up left out, the mean of the ranks in each step.

    The ranks wait for each other, so each of them takes as long as all, on average; the
    longest in each step would count twice what one of them was late and then caught up.
    """

    count: Annotated[int, Field(ge=0)]
    median_s: Seconds
    p95_s: Seconds
    min_s: Seconds


class BucketTraffic(Value):
    """What one bucket put on the wire, per step and rank."""

    tensors: int
    kind: str
    collective: str
    dense_nbytes: Nbytes
    message_nbytes: float  # mean over the steps; handed to the transport by this rank


class Traffic(Value):
    """Wire bytes of a whole step on rank 0.

    ``interface_tx_nbytes`` is what the operating system counted on all network
    interfaces of rank 0's host per step, protocol headers included, where it can tell.
    """

    buckets: tuple[BucketTraffic, ...]
    dense_nbytes: Nbytes
    message_nbytes: float
    compression_ratio: float
    interface_tx_nbytes: float | None = None


class Evaluation(Value):
    """A figure on held-out data after some step."""

    step: int
    epoch: int
    metric: str  # such as "accuracy"
    value: float


class Replan(Value):
    """The run went on by another plan from ``step`` on, and why.

    ``expected_s`` is what an iteration by the old plan was predicted to take,
    ``corrected_s`` what it was predicted to take from then on, ``predicted_s`` what one
    by the new plan is.
    """

    step: int
    reason: str
    plan_sha256: str
    expected_s: Seconds
    corrected_s: Seconds
    predicted_s: Seconds


class RunRecord(Document):
    """What was run, how long it took, what it sent and how well the model does.

    The plan is the one that the run began with; ``replans`` are those that followed,
    and ``traffic`` and ``timing`` are of the last one. ``timing`` holds medians over
    the steps, rank 0's; ``losses`` its training loss in each step, None where that was
    inf or NaN. ``predicted_error_s`` is the plan's ``error_s``.
    """

    SCHEMA: ClassVar[str] = "comm-plan/run"

    workload: str
    solver: str
    plan_sha256: str
    model_fingerprint: str
    backend: str
    world_size: Annotated[int, Field(gt=0)]
    hosts: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    seed: int = 0
    steps: Annotated[int, Field(ge=0)]
    skipped_steps: Annotated[int, Field(ge=0)] = 0
    iteration: IterationTimes
    iterations_s: tuple[Seconds, ...] = ()
    predicted_iteration_s: Seconds | None = None
    predicted_error_s: Seconds | None = None
    traffic: Traffic | None = None
    evaluations: tuple[Evaluation, ...] = ()
    final_loss: float | None = None
    losses: tuple[float | None, ...] = ()
    timing: Timing | None = None
    replans: tuple[Replan, ...] = ()
    emulated_link: EmulatedLink | None = None
    parameters_sha256: str | None = None
