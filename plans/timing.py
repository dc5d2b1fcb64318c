"""When the parts of one iteration happen: as predicted, and as a run measured them."""

from __future__ import annotations

from pydantic import model_validator
from typing_extensions import Self

from comm_plan.plans.document import Seconds, Value


class BucketTiming(Value):
    """One bucket on its way, in seconds from the start of the iteration.

    ``ready_s``: its last gradient is there and compressed. ``start_s``: the channel
    takes it. ``finish_s``: its means are in place. ``codec_s``: of the time between
    these two, what encoding and decoding take, where that is known.
    """

    ready_s: Seconds
    start_s: Seconds
    finish_s: Seconds
    codec_s: Seconds = 0.0

    @property
    def busy_s(self) -> float:
        """How long it keeps the channel."""
        return self.finish_s - self.start_s

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.ready_s <= self.start_s <= self.finish_s:
            raise ValueError(
                f"ready at {self.ready_s}, started at {self.start_s}, finished at "
                f"{self.finish_s}: times of a bucket do not decrease"
            )
        return self


class Timing(Value):
    """One iteration, in seconds from its start.

    ``backward_start_s``: forward is done. ``compute_end_s``: backward and all
    compression are done. ``buckets`` are in launch order.
    """

    backward_start_s: Seconds
    compute_end_s: Seconds
    buckets: tuple[BucketTiming, ...]

    @property
    def backward_s(self) -> float:
        """How long backward and all compression take."""
        return self.compute_end_s - self.backward_start_s
