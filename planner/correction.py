"""What a run teaches: costs corrected by what one plan's buckets really took.

A plan says when each bucket should be ready, start and finish; a run says when they
were. Forward is stretched by one factor, backward by another, and every collective that
the plan uses by one of its own, so that the same plan's prediction becomes what was
measured, while the shapes of all curves, and so what a solver assumes of them, stay. A
link that got slower did so for all collectives: those that the plan does not use are
stretched by what its buckets took altogether. What a bucket's decoding took counts as
its collective's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from comm_plan.errors import InputError
from comm_plan.plans.network import (
    CollectiveCost,
    Fit,
    Network,
    Sample,
    Segment,
)
from comm_plan.plans.plan import Plan
from comm_plan.plans.profile import Profile
from comm_plan.plans.timing import BucketTiming, Timing

LARGEST_FACTOR = 1e3
"""A collective is not corrected by more than this, up or down: what was measured then
is no cost."""


@dataclass(frozen=True)
class Correction:
    """Measured over predicted times of one plan.

    Attributes:
        forward: of forward.
        backward: of backward, with the compression in it.
        channel: of all buckets together.
        collectives: by name, of the collectives that the plan uses.
    """

    forward: float
    backward: float
    channel: float
    collectives: dict[str, float]

    @classmethod
    def of(cls, plan: Plan, measured: Timing) -> Correction:
        """Return what ``measured`` says of the prediction of ``plan``.

        Raises:
            InputError: the plan has no predicted times.
        """
        predicted = None if plan.predicted is None else plan.predicted.timing
        if predicted is None:
            raise InputError("the plan has no predicted times: solve it again")
        return cls(
            forward=_ratio(measured.backward_start_s, predicted.backward_start_s),
            backward=_ratio(_backward_s(measured), _backward_s(predicted)),
            channel=_ratio(_busy_s(measured.buckets), _busy_s(predicted.buckets)),
            collectives=dict(_collectives(plan, measured, predicted)),
        )

    def profile(self, profile: Profile) -> Profile:
        """Return ``profile`` with computation as slow as it was."""
        tensors = tuple(
            tensor.model_copy(update={"ready_s": tensor.ready_s * self.backward})
            for tensor in profile.tensors
        )
        return profile.model_copy(
            update={
                "forward_s": profile.forward_s * self.forward,
                "backward_s": profile.backward_s * self.backward,
                "tensors": tensors,
            }
        )

    def network(self, network: Network) -> Network:
        """Return ``network`` with collectives as slow as they were."""
        collectives = {
            name: _stretched(cost, self.collectives.get(name, self.channel))
            for name, cost in network.collectives.items()
        }
        return network.model_copy(update={"collectives": collectives})


def _backward_s(timing: Timing) -> float:
    return timing.compute_end_s - timing.backward_start_s


def _collectives(
    plan: Plan, measured: Timing, predicted: Timing
) -> Iterator[tuple[str, float]]:
    for name in dict.fromkeys(bucket.collective for bucket in plan.buckets):
        which = [i for i, b in enumerate(plan.buckets) if b.collective == name]
        busy_s = _busy_s(measured.buckets[i] for i in which)
        expected_s = _busy_s(predicted.buckets[i] for i in which)
        yield name, _ratio(busy_s, expected_s)


def _busy_s(buckets: Iterable[BucketTiming]) -> float:
    return sum(bucket.finish_s - bucket.start_s for bucket in buckets)


def _ratio(measured_s: float, predicted_s: float) -> float:
    if measured_s <= 0 or predicted_s <= 0:
        return 1.0
    return min(LARGEST_FACTOR, max(1 / LARGEST_FACTOR, measured_s / predicted_s))


def _stretched(cost: CollectiveCost, factor: float) -> CollectiveCost:
    samples = tuple(
        Sample(
            nbytes=sample.nbytes,
            median_s=sample.median_s * factor,
            min_s=sample.min_s * factor,
            p95_s=sample.p95_s * factor,
            iterations=sample.iterations,
        )
        for sample in cost.samples
    )
    fit = cost.fit and Fit(
        segments=tuple(
            Segment(
                from_nbytes=segment.from_nbytes,
                alpha_s=segment.alpha_s * factor,
                beta_s_per_byte=segment.beta_s_per_byte * factor,
            )
            for segment in cost.fit.segments
        ),
        median_error=cost.fit.median_error,
    )
    return cost.model_copy(update={"samples": samples, "fit": fit})
