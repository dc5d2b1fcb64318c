"""What a run teaches: costs corrected by what one plan's buckets really took.

A plan says when each bucket should be ready, start and finish; a run says when they
were. Forward is stretched by one factor and backward by another. The link has two: of
the latency and of the time per byte, for all collectives alike, since a slow link is
slow for all of them. Each message is seen at one size only, so the two are the least
squares (of relative errors) over all buckets and, where there is one, a probe; what the
messages do not tell, such as the bandwidth where all are short, stays as it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from comm_plan.planner.curve import FloatArray, measured
from comm_plan.planner.predict import posed
from comm_plan.planner.problem import Settings
from comm_plan.plans.network import CollectiveCost, Fit, Network, Sample, Segment
from comm_plan.plans.plan import Plan
from comm_plan.plans.profile import Profile
from comm_plan.plans.timing import Timing

LARGEST_FACTOR = 1e3
"""Nothing is corrected by more than this, up or down: what was measured is no cost."""

PRIOR = 1e-4
"""What a factor that differs from 1 counts, beside a relative error of as much: 1."""

LEAST_SHARE = 0.1
"""A message that took a smaller share of what was expected weighs as if it had not."""

_FREE_S = 1e-12  # a sample is above 0


@dataclass(frozen=True)
class Probe:
    """An all-reduce that was timed beside the buckets.

    Attributes:
        nbytes: its size.
        seconds: what it took, from when the last rank came.
    """

    nbytes: int
    seconds: float


@dataclass(frozen=True)
class Correction:
    """Measured over expected times.

    Attributes:
        forward: of forward.
        backward: of backward, with the compression in it.
        latency: of what a message takes however short it is.
        per_byte: of what each byte adds.
        channel: of all that the buckets communicated.
        probe: of the probe; 1 without one.
    """

    forward: float
    backward: float
    latency: float
    per_byte: float
    channel: float
    probe: float = 1.0

    @property
    def observed(self) -> tuple[float, float, float]:
        """What was seen directly: of computation, of the buckets, and of the probe.

        The factors of the link are what best explains it; where messages are much
        alike, they may be far off and explain it still.
        """
        return self.backward, self.channel, self.probe

    def profile(self, profile: Profile) -> Profile:
        """Return ``profile`` with computation as slow as it was."""
        return profile.with_slower_backward(self.backward).model_copy(
            update={
                "forward_s": profile.forward_s * self.forward,
                "waiting_s": profile.waiting_s * self.forward,
            }
        )

    def network(self, network: Network) -> Network:
        """Return ``network`` with collectives as slow as they were."""
        return _stretched(network, self.latency, self.per_byte)


def correction(
    plan: Plan,
    timing: Timing,
    profile: Profile,
    network: Network,
    settings: Settings | None = None,
    probe: Probe | None = None,
) -> Correction:
    """Return what a run by ``plan`` says of the costs that were expected.

    Args:
        plan: what was run.
        timing: when its buckets travelled, without waiting for other ranks.
        profile: the expected computation.
        network: the expected collectives.
        settings: what the plan was solved with.
        probe: another observation of the link.

    Raises:
        MismatchError: the plan's tensors are not the profile's.
        InputError: a cost that is needed was not measured.
    """
    problem, solution = posed(plan, profile, network, settings)
    expected = problem.simulate(solution)
    forward_s = profile.backward_start_s
    quick_network = _stretched(network, 1.0, 0.0)
    quick_problem, quick = posed(plan, profile, quick_network, settings)
    busy_s = np.array([bucket.busy_s for bucket in timing.buckets])
    seen = [
        (quick.times().communicate_s, solution.times().communicate_s,
         busy_s / expected.slowdown - expected.times.codec_s)
    ]  # fmt: skip
    if probe is not None:
        nbytes = np.array([probe.nbytes])
        quick_curve = quick_problem.prices.curve("allreduce")
        curve = problem.prices.curve("allreduce")
        seen.append((quick_curve(nbytes), curve(nbytes), np.array([probe.seconds])))
    latency_s, expected_s, seconds = (
        np.concatenate(parts) for parts in zip(*seen, strict=True)
    )
    latency, per_byte = _link(latency_s, expected_s - latency_s, seconds)
    return Correction(
        forward=_ratio(timing.backward_start_s, forward_s),
        backward=_ratio(
            timing.backward_s,
            expected.compute_end_s - forward_s,
        ),
        latency=latency,
        per_byte=per_byte,
        channel=_ratio(float(seen[0][2].sum()), float(seen[0][1].sum())),
        probe=_ratio(float(seconds[-1]), float(expected_s[-1])) if probe else 1.0,
    )


def _link(
    latency_s: FloatArray, volume_s: FloatArray, seconds: FloatArray
) -> tuple[float, float]:
    """Return the factors of ``latency_s`` [N] and ``volume_s`` [N] that fit best.

    Args:
        latency_s: expected of each message, however short it were.
        volume_s: what its bytes add.
        seconds: what it took.
    """
    # However little a message takes, some of what was measured is the link's doing.
    weights = 1 / np.maximum(seconds, LEAST_SHARE * (latency_s + volume_s))
    rows = np.stack([latency_s * weights, volume_s * weights], axis=1)
    prior = np.sqrt(PRIOR) * np.eye(2)
    factors, *_ = np.linalg.lstsq(
        np.concatenate([rows, prior]),
        np.concatenate([seconds * weights, prior.sum(axis=1)]),
    )
    latency, per_byte = (_bounded(factor) for factor in factors.tolist())
    return latency, per_byte


def _ratio(measured_s: float, expected_s: float) -> float:
    if measured_s <= 0 or expected_s <= 0:
        return 1.0
    return _bounded(measured_s / expected_s)


def _bounded(factor: float) -> float:
    return min(LARGEST_FACTOR, max(1 / LARGEST_FACTOR, factor))


def _stretched(network: Network, latency: float, per_byte: float) -> Network:
    collectives = {
        name: _cost(cost, latency, per_byte)
        for name, cost in network.collectives.items()
    }
    return network.model_copy(update={"collectives": collectives})


def _cost(cost: CollectiveCost, latency: float, per_byte: float) -> CollectiveCost:
    """Return ``cost`` with the start-up of its curve stretched, and all above it."""
    startup_s = measured(cost).startup_s

    def seconds(value_s: float) -> float:
        short_s = min(value_s, startup_s)
        return max(_FREE_S, latency * short_s + per_byte * (value_s - short_s))

    samples = tuple(
        Sample(
            nbytes=sample.nbytes,
            median_s=seconds(sample.median_s),
            min_s=seconds(sample.min_s),
            p95_s=seconds(sample.p95_s),
            iterations=sample.iterations,
        )
        for sample in cost.samples
    )
    fit = cost.fit and Fit(
        segments=tuple(
            Segment(
                from_nbytes=segment.from_nbytes,
                alpha_s=seconds(segment.alpha_s),
                beta_s_per_byte=segment.beta_s_per_byte * per_byte,
            )
            for segment in cost.fit.segments
        ),
        median_error=cost.fit.median_error,
    )
    return cost.model_copy(update={"samples": samples, "fit": fit})
