"""One way to send a bucket, priced: a compressor, a collective, and what they cost.

Everything a bucket costs is a sum over its tensors or a curve of such a sum, so an
option keeps prefix sums over the model's L tensors, and the cost of the bucket
``start..stop`` (stop exclusive) is a difference of two of their entries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from comm_plan.arrays import BoolArray, FloatArray, IntArray
from comm_plan.planner.curve import CostCurve
from comm_plan.plans.compression import Spec


def prefix_sums(values: ArrayLike) -> FloatArray:
    """Return [L + 1] sums of the first 0, 1, ..., L of ``values`` [L]."""
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])


@dataclass(frozen=True, eq=False)
class Leg:
    """One collective call for a bucket.

    Attributes:
        curve: its cost by the bytes of its buffer.
        nbytes: [L + 1] prefix sums of the tensors' shares in that buffer.
        fixed_nbytes: what the buffer holds besides, whatever the tensors.
    """

    curve: CostCurve
    nbytes: FloatArray
    fixed_nbytes: int = 0

    def seconds(self, start: IntArray | int, stop: IntArray | int) -> FloatArray:
        """Return the cost for buckets ``start..stop``."""
        return self.curve(self.nbytes[stop] - self.nbytes[start] + self.fixed_nbytes)


@dataclass(frozen=True, eq=False)
class Option:
    """A compressor with a collective, and their cost for any bucket of the model.

    Attributes:
        compressor: the spec; it may hold one density per tensor [L].
        collective: which collective carries it.
        ratio: how much of the gradient's information is left out, as a factor; 1 for
            dense (see ``Spec.ratio``).
        legs: the collective calls, one after another.
        compress_s: [L + 1] prefix sums of the time on the compute stream.
        codec_s: [L + 1] prefix sums of the time to encode and to decode.
        bucket_s: what a bucket takes of that besides, whatever its tensors.
        allowed: [L] which tensors may go this way.
        rows_s: [L] the seconds of gathering the rows of tensors whose gradients are
            sparse, each of which is a bucket of its own; NaN for all others.
        rows_startup_s: what of that it takes without rows.
    """

    compressor: Spec
    collective: str
    ratio: float
    legs: tuple[Leg, ...]
    compress_s: FloatArray
    codec_s: FloatArray
    bucket_s: float
    allowed: BoolArray
    rows_s: FloatArray
    rows_startup_s: float

    def communicate_s(self, start: IntArray | int, stop: IntArray | int) -> FloatArray:
        """Return the seconds of all collective calls for buckets ``start..stop``."""
        legs = sum((leg.seconds(start, stop) for leg in self.legs), np.zeros(()))
        rows_s = self.rows_s[start]
        return np.where(np.isnan(rows_s), legs, rows_s)

    def gathers_rows(self, tensor: int) -> bool:
        """Return whether ``tensor`` has a sparse gradient, a bucket of its own."""
        return not np.isnan(self.rows_s[tensor])

    @cached_property
    def startup_s(self) -> float:
        """Seconds of all collective calls for a bucket without bytes."""
        return sum(leg.curve.startup_s for leg in self.legs)

    def channel_s(self, start: IntArray | int, stop: IntArray | int) -> FloatArray:
        """Return how long buckets ``start..stop`` keep the channel: decoding too."""
        return self.communicate_s(start, stop) + self._coding_s(start, stop)

    def phases_s(
        self, start: IntArray, stop: IntArray | int
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return how long buckets ``start..stop`` start up, travel and are decoded."""
        channel = self.communicate_s(start, stop)
        dense = np.isnan(self.rows_s[start])
        each = np.where(dense, self.startup_s, self.rows_startup_s)
        startup = np.minimum(each, channel)
        return startup, channel - startup, self._coding_s(start, stop)

    def _coding_s(self, start: IntArray | int, stop: IntArray | int) -> FloatArray:
        gathered = ~np.isnan(self.rows_s[start])
        tensors_s = self.codec_s[stop] - self.codec_s[start]
        return tensors_s + np.where(gathered, 0.0, self.bucket_s)

    def spec(self, start: int, stop: int) -> Spec:
        """Return the compressor of bucket ``start..stop`` for a plan."""
        return self.compressor.restricted_to(start, stop)

    def except_on(self, tensors: BoolArray) -> Option:
        """Return the option, not allowed on ``tensors`` [L]."""
        return replace(self, allowed=self.allowed & ~tensors)
