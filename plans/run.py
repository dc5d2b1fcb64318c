"""The run record: what a training run under a plan really did."""

from __future__ import annotations

from typing import ClassVar

from comm_plan.plans.document import (
    Count,
    Document,
    MeanNbytes,
    Name,
    Nbytes,
    PositiveCount,
    Ranks,
    Seconds,
    Seed,
    Sentence,
    Value,
)
from comm_plan.plans.link import EmulatedLink
from comm_plan.plans.local import LocalSteps, steps_of
from comm_plan.plans.timing import Timing

STOCK_DDP = "ddp"
"""The ``solver`` of runs that no plan averaged."""


class IterationTimes(Value):
    """Measured iteration times, warm-up left out, the mean of the ranks in each step.

    The ranks wait for each other, so each of them takes as long as all, on average; the
    longest in each step would count twice what one of them was late and then caught up.
    """

    count: Count
    median_s: Seconds
    p95_s: Seconds
    min_s: Seconds


class BucketTraffic(Value):
    """What one bucket put on the wire, per step and rank."""

    tensors: Count
    kind: Name
    collective: Name
    dense_nbytes: Nbytes
    message_nbytes: (
        MeanNbytes  # mean over the steps; handed to the transport by this rank
    )


class Traffic(Value):
    """Wire bytes of a whole step on rank 0; none where it is the only one.

    ``steps_nbytes`` are the bytes of all messages in each step: they change while a
    warm-up lowers the density, and where the data decides what is sent.
    """

    buckets: tuple[BucketTraffic, ...]
    dense_nbytes: Nbytes
    message_nbytes: MeanNbytes
    compression_ratio: float
    steps_nbytes: tuple[Nbytes, ...] = ()


class Evaluation(Value):
    """A figure on held-out data after some step."""

    step: Count
    epoch: Count
    metric: Name  # "accuracy" or "loss"
    value: float


class Replan(Value):
    """The run went on by another plan from ``step`` on, and why.

    ``expected_s`` is what an iteration by the old plan was predicted to take,
    ``corrected_s`` what it was predicted to take from then on, ``predicted_s`` what one
    by the new plan is.
    """

    step: Count
    reason: Sentence
    plan_sha256: Name
    expected_s: Seconds
    corrected_s: Seconds
    predicted_s: Seconds


class Following(Value):
    """What following the network came to, so far.

    ``windows`` is how often the ranks held what they measured against what was
    expected; ``kept`` how often a change lasted, and the plan was the best still.
    """

    windows: Count = 0
    kept: Count = 0


class RunRecord(Document):
    """What was run, how long it took, what it sent and how well the model does.

    The plan is the one that the run began with; ``replans`` are those that followed,
    and ``traffic``, ``timing`` and ``predicted_timing`` are of the last one; without
    ``following`` nobody looked for reasons to change it. ``timing`` holds medians over
    the steps, of a long run over the last 10,000, rank 0's; ``losses`` its training
    loss in each step, None where that was inf or NaN. ``predicted_error_s`` is the
    plan's ``error_s``; what was predicted for another emulated link is left out. Each
    batch was cut into ``micro_batches``, for second moments where these are not exact,
    and has no ``timing`` then; 1: whole.
    ``solver`` is the plan's label; where stock DDP averaged the gradients, it is
    :data:`STOCK_DDP` and there is no plan. Of a user's own loop the ``seed`` is not
    known, and losses only as far as it told them. With ``local_steps`` the times of
    ``iteration`` are means over rounds, and ``timing`` and ``predicted_timing`` are of
    a whole one, and ``skipped_steps`` counts rounds, which were undone.
    ``interface_tx_nbytes`` is what the operating system counted on all network
    interfaces of rank 0's host per step, protocol headers included, where it can tell.
    """

    SCHEMA: ClassVar[str] = "comm-plan/run"

    workload: Name
    solver: Name
    plan_sha256: Name | None = None
    model_fingerprint: Name
    backend: Name
    world_size: Ranks
    hosts: tuple[Name, ...] = ()
    environment: dict[Name, Sentence] = {}
    seed: Seed | None = None
    steps: Count
    skipped_steps: Count = 0
    micro_batches: PositiveCount = 1
    local_steps: LocalSteps | None = None
    iteration: IterationTimes
    iterations_s: tuple[Seconds, ...] = ()
    predicted_iteration_s: Seconds | None = None
    predicted_error_s: Seconds | None = None
    traffic: Traffic | None = None
    interface_tx_nbytes: MeanNbytes | None = None
    evaluations: tuple[Evaluation, ...] = ()
    final_loss: float | None = None
    losses: tuple[float | None, ...] = ()
    timing: Timing | None = None
    predicted_timing: Timing | None = None
    replans: tuple[Replan, ...] = ()
    following: Following | None = None
    emulated_link: EmulatedLink | None = None
    parameters_sha256: Name | None = None

    @property
    def conditions(self) -> tuple[int, str, EmulatedLink | None]:
        """What runs must agree in for their times to be compared."""
        return self.world_size, self.backend, self.emulated_link

    @property
    def round_steps(self) -> int:
        """How many steps the ranks made to an exchange."""
        return steps_of(self.local_steps)
