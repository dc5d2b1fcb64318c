"""What is measured while a run goes on, and the record that is made of it."""

from __future__ import annotations

import math
import os
import platform
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from comm_plan.plans import (
    BucketTraffic,
    Evaluation,
    IterationTimes,
    Plan,
    Predicted,
    RunRecord,
    Traffic,
)
from comm_plan.plans.parameters import model_fingerprint
from comm_plan.plans.run import STOCK_DDP
from comm_plan.runtime.bucket import BucketExchange
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.flat import sha256_of
from comm_plan.runtime.timing import Moments, StepSeconds, median_timing
from comm_plan.transports.base import Transport

Measured = TypeVar("Measured")

WARMUP_STEPS = 3
"""First steps whose times are left out: allocations, first touches, connections."""

LAST_STEPS = 10_000
"""Of so many steps the moments are kept, or a long run would fill the memory."""

INTERFACES = Path("/sys/class/net")
"""Where Linux tells of its network interfaces."""


class Recorder:
    """The measurements of a run on this rank, from its making on, whatever averages.

    Args:
        model: what is trained.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._fingerprint = model_fingerprint(model)  # some may be frozen at the end
        self._evaluations: list[Evaluation] = []
        self._iterations_s: list[float] = []
        self._losses: list[float | None] = []
        self._tx_nbytes: int | None = 0

    @property
    def steps(self) -> int:
        """How many were noted."""
        return len(self._iterations_s)

    @contextmanager
    def counting_traffic(self) -> Iterator[None]:
        """Count what this host's interfaces send within as this run's."""
        before = _interface_tx_nbytes()
        yield
        after = _interface_tx_nbytes()
        if before is None or after is None or self._tx_nbytes is None:
            self._tx_nbytes = None
        else:
            self._tx_nbytes += max(0, after - before)  # an interface may go

    def add_step(self, seconds: float) -> None:
        """Note a step that has just ended."""
        self._iterations_s.append(seconds)
        self._losses.append(None)

    def add_loss(self, loss: float) -> None:
        """Note the training loss of the last step."""
        self._losses[-1] = loss if math.isfinite(loss) else None

    def add_evaluation(
        self, metric: str, value: float, step: int, epoch: int = 0
    ) -> None:
        """Note what was found on held-out data; not inf or NaN, which JSON has not."""
        if math.isfinite(value):
            self._evaluations.append(
                Evaluation(step=step, epoch=epoch, metric=metric, value=value)
            )

    def record(
        self,
        transport: Transport,
        *,
        workload: str,
        steps: int,
        seed: int | None = None,
        micro_batches: int = 1,
    ) -> RunRecord:
        """Return what happened; a collective call.

        Of ranks that made more steps than others only the first ones count.

        Args:
            transport: the ranks.
            workload: its name.
            steps: done in all, also before a resume.
            seed: of the run, if it is known.
            micro_batches: into how many each batch was cut.
        """
        of_ranks = transport.gather_objects(self._iterations_s)
        shortest = min(map(len, of_ranks))
        means_s: list[float] = np.mean(
            [own[:shortest] for own in of_ranks], axis=0
        ).tolist()
        hosts = transport.gather_objects(socket.gethostname())
        losses = self._losses[:shortest]
        return RunRecord(
            workload=workload,
            model_fingerprint=self._fingerprint,
            backend=transport.backend,
            world_size=transport.world_size,
            hosts=tuple(hosts),
            environment=_environment(),
            seed=seed,
            steps=steps,
            micro_batches=micro_batches,
            iterations_s=tuple(means_s),
            evaluations=tuple(self._evaluations),
            final_loss=losses[-1] if losses else None,
            losses=tuple(losses) if any(x is not None for x in losses) else (),
            emulated_link=transport.emulated_link,
            parameters_sha256=parameters_sha256(self._model),
            interface_tx_nbytes=self._tx_nbytes_per_step(),
            **self._of_averaging(means_s),
        )

    def _tx_nbytes_per_step(self) -> float | None:
        if self._tx_nbytes is None or not self.steps:
            return None
        return self._tx_nbytes / self.steps

    def _of_averaging(self, means_s: Sequence[float]) -> dict[str, Any]:
        """Return the fields of the record that depend on who averages.

        Args:
            means_s: what each step took, the mean of the ranks.
        """
        return {"solver": STOCK_DDP, "iteration": _summary(means_s)}


class EngineRecorder(Recorder):
    """Those of a run by a plan.

    What is said of single buckets is of those since the last change of the plan, and
    when they travelled of the last steps. Of local steps, most of which exchange
    nothing, times are means over rounds, and bytes over all steps.

    Args:
        engine: of the run.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.model)
        self._engine = engine
        self._plan = engine.plan
        self._fingerprint = self._plan.model.fingerprint
        self._steps_nbytes: list[int] = []
        self._step_seconds: deque[StepSeconds] = deque(maxlen=LAST_STEPS)
        self._unread: Moments | None = None
        self._replans = len(engine.replans)
        self._buckets = engine.buckets
        self._sent_nbytes = [0] * len(self._buckets)
        self._exchanges = engine.step
        self._last_nbytes = 0

    @property
    def last_nbytes(self) -> int:
        """The bytes that all buckets sent in the last step."""
        return self._last_nbytes

    def add_step(self, seconds: float) -> None:
        """Note a step that has just ended, and what its buckets did.

        At the end of one the plan may have changed; what buckets did counts from then.
        """
        super().add_step(seconds)
        nbytes = self._exchanged()
        self._last_nbytes = sum(nbytes)
        if self._replans == len(self._engine.replans):
            self._steps_nbytes.append(0)
            self._add_to_last(nbytes)
            return
        self._replans = len(self._engine.replans)
        self._buckets = self._engine.buckets
        self._sent_nbytes = [0] * len(self._buckets)
        self._steps_nbytes.clear()
        self._step_seconds.clear()
        self._unread = None

    def add_end_of_round(self, seconds: float) -> None:
        """Note that a round has ended before its time, as part of the last step."""
        self._iterations_s[-1] += seconds
        self._add_to_last(self._exchanged())

    def _add_to_last(self, nbytes: Sequence[int]) -> None:
        """Count what each bucket sent as of the last step."""
        each = zip(self._sent_nbytes, nbytes, strict=True)
        self._sent_nbytes = [before + more for before, more in each]
        self._steps_nbytes[-1] += sum(nbytes)

    def _exchanged(self) -> list[int]:
        """Return the bytes that each bucket has sent since the last step, and when."""
        before, self._exchanges = self._exchanges, self._engine.step
        if before == self._exchanges:
            return [0] * len(self._buckets)
        self._read_moments()
        self._unread = self._engine.last_moments
        if self._engine.transport.world_size == 1:
            return [0] * len(self._buckets)  # it has nobody to send to
        return [bucket.sent_nbytes for bucket in self._buckets]

    def _read_moments(self) -> None:
        """Read those of the step before: of this one the device is not done yet."""
        if self._unread is None:
            return
        reached, self._unread = self._unread.seconds(), None
        if reached is not None:
            self._step_seconds.append(reached)

    def _of_averaging(self, means_s: Sequence[float]) -> dict[str, Any]:
        """Return what the plan foresaw, and what its buckets did."""
        self._read_moments()
        plan = self._plan
        predicted, last = map(self._predicted, (plan, self._engine.plan))
        return {
            "solver": plan.label,
            "plan_sha256": plan.sha256,
            "skipped_steps": self._engine.skipped_steps,
            "local_steps": plan.local_steps,
            "iteration": _summary(_rounds(means_s, plan)),
            "predicted_iteration_s": predicted and predicted.iteration_s,
            "predicted_error_s": predicted and predicted.error_s,
            "traffic": self._traffic(own_steps=self.steps - len(means_s)),
            "timing": median_timing(_warm(list(self._step_seconds))),
            "predicted_timing": last and last.timing,
            "replans": tuple(self._engine.replans),
            "following": self._engine.following,
        }

    def _predicted(self, plan: Plan) -> Predicted | None:
        """Return what ``plan`` foresaw, if it was for the link that there is."""
        here = self._engine.transport.emulated_link
        return plan.predicted if plan.emulated_link == here else None

    def _traffic(self, own_steps: int) -> Traffic | None:
        """Return what was sent; the last ``own_steps`` only this rank made."""
        steps = len(self._steps_nbytes)
        if not steps:
            return None
        means = [nbytes / steps for nbytes in self._sent_nbytes]
        buckets = tuple(map(_bucket_traffic, self._engine.buckets, means))
        dense = sum(bucket.dense_nbytes for bucket in buckets)
        message = sum(bucket.message_nbytes for bucket in buckets)
        return Traffic(
            buckets=buckets,
            dense_nbytes=dense,
            message_nbytes=message,
            compression_ratio=dense / message if message else 1.0,
            steps_nbytes=tuple(self._steps_nbytes[: steps - own_steps]),
        )


def parameters_sha256(model: nn.Module) -> str:
    """Return the SHA-256 of all parameters and buffers, to compare runs bit by bit."""
    return sha256_of([*model.parameters(), *model.buffers()])


def _bucket_traffic(bucket: BucketExchange, message_nbytes: float) -> BucketTraffic:
    return BucketTraffic(
        tensors=len(bucket.parameters),
        kind=bucket.planned.compressor.kind,
        collective=bucket.planned.collective,
        dense_nbytes=bucket.dense_nbytes,
        message_nbytes=message_nbytes,
    )


def _warm(steps: Sequence[Measured]) -> Sequence[Measured]:
    """Return what was measured after the warm-up, if the run was any longer."""
    return steps[WARMUP_STEPS:] if len(steps) > WARMUP_STEPS else steps


def _rounds(iterations_s: Sequence[float], plan: Plan) -> Sequence[float]:
    """Return what is an iteration's time: of local steps the mean of every round's."""
    every = plan.round_steps
    if every == 1:
        return iterations_s
    whole = len(iterations_s) // every * every
    means: list[float] = (
        np.asarray(iterations_s[:whole]).reshape(-1, every).mean(axis=1).tolist()
    )
    return means


def _summary(iterations_s: Sequence[float]) -> IterationTimes:
    times = np.asarray(_warm(iterations_s))
    if not times.size:
        return IterationTimes(count=0, median_s=0.0, p95_s=0.0, min_s=0.0)
    return IterationTimes(
        count=times.size,
        median_s=float(np.median(times)),
        p95_s=float(np.percentile(times, 95)),
        min_s=float(times.min()),
    )


def _environment() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "threads": str(torch.get_num_threads()),
        "cpus": str(os.cpu_count()),
    }


def _interface_tx_nbytes() -> int | None:
    """Return the bytes that all network interfaces of this host have sent, on Linux."""
    values = []
    for counter in INTERFACES.glob("*/statistics/tx_bytes"):
        with suppress(OSError):  # one that goes this moment, as a container's may
            values.append(int(counter.read_text()))
    return sum(values) if values else None
