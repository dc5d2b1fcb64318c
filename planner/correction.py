"""Costs as runs showed them to be (``observed`` says how they do)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import mean

from comm_plan.planner.curve import measured
from comm_plan.plans.compression import spec_class
from comm_plan.plans.network import CollectiveCost, Fit, Network, Sample, Segment
from comm_plan.plans.profile import Profile, SecondMoments

_FREE_S = 1e-12  # a sample is above 0


@dataclass(frozen=True)
class Correction:
    """Measured over expected times.

    Attributes:
        forward: of forward.
        backward: of backward, without compression.
        latency: of what a message takes however short it is.
        per_byte: of what each byte adds.
        observed: what was seen directly: of computation, compression included, of all
            that the buckets communicated, and of the probes, 1 without any. The others
            are what best explains these; where messages are much alike, they may be far
            off and explain them still.
        compression: of what compressing takes within backward, by kind.
        waiting_s: seconds that an iteration takes longer than all of this explains.
        coding: of what encoding and decoding takes, by kind.
    """

    forward: float
    backward: float
    latency: float
    per_byte: float
    observed: tuple[float, float, float]
    compression: Mapping[str, float] = field(default_factory=dict)
    waiting_s: float = 0.0
    coding: Mapping[str, float] = field(default_factory=dict)

    def partly(self, share: float) -> Correction:
        """Return what to correct by where only so much of it is believed.

        Args:
            share: 0: none; 1/2: as much as what was measured before; 1: all.
        """
        return Correction(
            forward=self.forward**share,
            backward=self.backward**share,
            latency=self.latency**share,
            per_byte=self.per_byte**share,
            observed=self.observed,
            compression={k: factor**share for k, factor in self.compression.items()},
            waiting_s=share * self.waiting_s,
            coding={k: factor**share for k, factor in self.coding.items()},
        )

    def profile(self, profile: Profile) -> Profile:
        """Return ``profile`` with computation and waiting as long as they were."""
        waiting_s = profile.waiting_s * self.forward + self.waiting_s
        compression = {
            kind: tuple(
                cost.longer(
                    compress=self.compression.get(kind, 1.0),
                    coding=self.coding.get(kind, 1.0),
                )
                for cost in costs
            )
            for kind, costs in profile.compression.items()
        }
        slower = profile.slower(forward=self.forward, backward=self.backward)
        return slower.model_copy(
            update={
                "waiting_s": max(0.0, waiting_s),
                "compression": compression,
                "second_moments": self._second_moments(profile.second_moments),
            }
        )

    def _second_moments(self, known: SecondMoments | None) -> SecondMoments | None:
        """Return what second moments take, which is part of what was seen of a kind.

        Of several kinds that need them, in the mean.
        """
        seen = [
            factor
            for kind, factor in self.compression.items()
            if spec_class(kind).needs_second_moments
        ]
        if known is None or known.extra_s is None or not seen:
            return known
        return known.model_copy(update={"extra_s": known.extra_s * mean(seen)})

    def network(self, network: Network) -> Network:
        """Return ``network`` with collectives as slow as they were."""
        slower = stretched(network, self.latency, self.per_byte)
        collectives = {
            name: cost.model_copy(update={"summing": self._summing(name, cost)})
            for name, cost in slower.collectives.items()
        }
        return slower.model_copy(update={"collectives": collectives})

    def _summing(self, collective: str, cost: CollectiveCost) -> dict[str, float]:
        """Return what sums take longer by their dtype, which counts as coding.

        Of several kinds that are summed alike, in the mean.
        """
        factors: dict[str, list[float]] = {}
        for kind, factor in self.coding.items():
            dtype = spec_class(kind).example().summed_as("float32", collective)
            factors.setdefault(dtype, []).append(factor)
        return {
            dtype: longer_s * mean(factors.get(dtype, [1.0]))
            for dtype, longer_s in cost.summing.items()
        }


def stretched(network: Network, latency: float, per_byte: float) -> Network:
    """Return ``network`` with other start-ups of all collectives, and other slopes.

    Args:
        network: what collectives cost.
        latency: the factor of what a message takes however short it is.
        per_byte: the factor of what each byte adds.
    """
    collectives = {
        name: _cost(cost, latency, per_byte)
        for name, cost in network.collectives.items()
    }
    return network.model_copy(update={"collectives": collectives})


def _cost(cost: CollectiveCost, latency: float, per_byte: float) -> CollectiveCost:
    """Return ``cost`` with the start-up of its curve stretched, and all above it.

    Samples scatter around the curve as they did: what one is above it by is no byte's.
    """
    curve = measured(cost)
    startup_s = curve.startup_s

    def at_no_bytes(alpha_s: float) -> float:
        """Of a segment that does not begin there it may be less than the start-up."""
        return max(0.0, latency * startup_s + per_byte * (alpha_s - startup_s))

    def longer(sample: Sample) -> Sample:
        before_s = float(curve(sample.nbytes))
        after_s = latency * startup_s + per_byte * (before_s - startup_s)
        factor = after_s / before_s
        return Sample(
            nbytes=sample.nbytes,
            median_s=max(_FREE_S, factor * sample.median_s),
            min_s=max(_FREE_S, factor * sample.min_s),
            p95_s=max(_FREE_S, factor * sample.p95_s),
            iterations=sample.iterations,
        )

    samples = tuple(map(longer, cost.samples))
    fit = cost.fit and Fit(
        segments=tuple(
            Segment(
                from_nbytes=segment.from_nbytes,
                alpha_s=at_no_bytes(segment.alpha_s),
                beta_s_per_byte=segment.beta_s_per_byte * per_byte,
            )
            for segment in cost.fit.segments
        ),
        median_error=cost.fit.median_error,
    )
    return cost.model_copy(update={"samples": samples, "fit": fit})
