"""What runs teach: which costs explain what the buckets of some plans really took.

A plan says when each bucket should be ready, start and finish; a run says when they
were. Forward is stretched by one factor, backward by another, and what compressing
takes within it by one for each kind of compressor: plans that compress differently tell
them apart. The link has two: of the latency and of the time per byte, for all
collectives alike, since a slow link is slow for all of them. They are told by the
buckets that are sent as they are, where there are any, for what these send is known,
and by probes. What others then take longer is put down to encoding and decoding, by
one factor for each kind. Each message is seen at one size only, so the factors are
least squares (of relative errors) over all plans and buckets; what these do not tell,
such as the bandwidth where all messages are short, stays as it was. What the iterations
then still take longer is put down to the ranks' waiting for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from comm_plan.arrays import BoolArray, FloatArray
from comm_plan.planner.correction import Correction, stretched
from comm_plan.planner.predict import posed
from comm_plan.planner.problem import Problem, Settings, Solution
from comm_plan.planner.schedule import Schedule
from comm_plan.plans.compression import spec_class
from comm_plan.plans.document import Value
from comm_plan.plans.network import Network
from comm_plan.plans.plan import Plan
from comm_plan.plans.profile import Profile
from comm_plan.plans.timing import BucketTiming, Timing

LARGEST_FACTOR = 1e3
"""Nothing is corrected by more than this, up or down: what was measured is no cost."""

LINK_PRIOR = 1e-4
"""What a factor of the link counts that differs from 1 by as much as something is off.

A link may become ten times as slow, where what is measured scatters by a tenth."""

COMPUTATION_PRIOR = 0.05
"""Likewise one of a part of backward, that differs from the factor of all of it, and
one of encoding and decoding.

Parts that no plan tells apart shall not make up for each other."""

NO_BYTES = 1e-6
"""A factor of the time per byte by which only latency is left. (0 would be a slope that
is not known, and made up.)"""

LEAST_SHARE = 0.1
"""A message that took a smaller share of what was expected weighs as if it had not."""


@dataclass(frozen=True)
class Seen:
    """What a run by a plan took.

    Attributes:
        plan: the plan.
        timing: when its buckets travelled, without waiting for other ranks.
        iteration_s: the whole iteration; None: not known.
    """

    plan: Plan
    timing: Timing
    iteration_s: float | None = None

    @classmethod
    def median(
        cls, plan: Plan, timings: Sequence[Timing], iterations_s: Sequence[float]
    ) -> Seen:
        """Return the median of what several runs by one plan took."""

        def middle(of: Sequence[Value], name: str) -> float:
            return _median([getattr(each, name) for each in of])

        def bucket(runs: Sequence[BucketTiming]) -> BucketTiming:
            names = BucketTiming.model_fields
            return BucketTiming(**{name: middle(runs, name) for name in names})

        timing = Timing(
            backward_start_s=middle(timings, "backward_start_s"),
            compute_end_s=middle(timings, "compute_end_s"),
            buckets=tuple(
                map(bucket, zip(*(each.buckets for each in timings), strict=True))
            ),
        )
        return cls(plan, timing, _median(iterations_s))


@dataclass(frozen=True)
class Probe:
    """An all-reduce that was timed beside the buckets.

    Attributes:
        nbytes: its size.
        seconds: what it took, from when the last rank came.
    """

    nbytes: int
    seconds: float


def correction(
    seen: Sequence[Seen],
    profile: Profile,
    network: Network,
    settings: Settings | None = None,
    probes: Sequence[Probe] = (),
) -> Correction:
    """Return what runs say of the costs that were expected.

    Args:
        seen: at least one run.
        profile: the expected computation.
        network: the expected collectives.
        settings: what the plans were solved with.
        probes: other observations of the link.

    Raises:
        MismatchError: a plan's tensors are not the profile's.
        InputError: a cost that is needed was not measured.
    """
    runs = [_Run(each, profile, network, settings) for each in seen]
    messages = _Messages.of_all([run.messages() for run in runs])
    kinds = [kind for run in runs for kind in run.kinds()]
    probed = 1.0
    plain = np.array([spec_class(kind).lossless for kind in kinds])
    telling = messages.only(plain) if plain.any() else messages
    if probes:
        extra = runs[0].probed(probes)
        telling = _Messages.of_all([telling, extra])
        probed = extra.ratio
    latency, per_byte = _link(telling)
    backward, compression = _computation(runs)
    found = Correction(
        forward=_median([run.forward for run in runs]),
        backward=backward,
        latency=latency,
        per_byte=per_byte,
        observed=(_median([run.computation for run in runs]), messages.ratio, probed),
        compression=compression,
        coding=_coding(messages, kinds, latency, per_byte),
    )
    return replace(found, waiting_s=_unexplained_s(found, runs))


@dataclass(frozen=True, eq=False)
class _Messages:
    """What N messages took, in seconds, beside what was expected, [N] each.

    Attributes:
        latency_s: what they were to take however short they are.
        volume_s: what their bytes were to take.
        coding_s: what encoding and decoding was to take.
        took_s: what all of that took.
    """

    latency_s: FloatArray
    volume_s: FloatArray
    coding_s: FloatArray
    took_s: FloatArray

    @classmethod
    def of_all(cls, parts: Sequence[_Messages]) -> _Messages:
        """Return all messages of ``parts``."""
        names = [each.name for each in fields(cls)]
        columns = ([getattr(part, name) for part in parts] for name in names)
        return cls(*map(np.concatenate, columns))

    def only(self, which: BoolArray) -> _Messages:
        """Return those of which ``which`` [N] is true."""
        return self._each(lambda seconds: seconds[which])

    @property
    def expected_s(self) -> FloatArray:
        """[N] what they were to take in all."""
        return self.latency_s + self.volume_s + self.coding_s

    @property
    def ratio(self) -> float:
        """Measured over expected, of all together."""
        return _ratio(float(self.took_s.sum()), float(self.expected_s.sum()))

    @property
    def shares(self) -> _Messages:
        """All of it as shares of what they took.

        However little a message takes, some of what was measured is the link's doing.
        """
        scale_s = np.maximum(self.took_s, LEAST_SHARE * self.expected_s)
        return self._each(lambda seconds: seconds / scale_s)

    def _each(self, change: Callable[[FloatArray], FloatArray]) -> _Messages:
        return _Messages(*(change(getattr(self, each.name)) for each in fields(self)))


@dataclass(frozen=True)
class _Run:
    """One run beside what was expected of it."""

    seen: Seen
    profile: Profile
    network: Network
    settings: Settings | None

    @cached_property
    def _posed(self) -> tuple[Problem, Solution]:
        return self._at(self.profile, self.network)

    def _at(self, profile: Profile, network: Network) -> tuple[Problem, Solution]:
        return posed(self.seen.plan, profile, network, self.settings)

    @cached_property
    def _posed_without_volume(self) -> tuple[Problem, Solution]:
        return self._at(self.profile, stretched(self.network, 1.0, NO_BYTES))

    @cached_property
    def _expected(self) -> Schedule:
        problem, solution = self._posed
        return problem.simulate(solution)

    @property
    def _backward_start_s(self) -> float:
        problem, _ = self._posed
        return problem.compute.backward_start_s

    @property
    def _backward_s(self) -> float:
        return self._expected.compute_end_s - self._backward_start_s

    @property
    def forward(self) -> float:
        """Forward, measured over expected."""
        return _ratio(self.seen.timing.backward_start_s, self._backward_start_s)

    @property
    def computation(self) -> float:
        """Backward with all compression, measured over expected."""
        return _ratio(self.seen.timing.backward_s, self._backward_s)

    @cached_property
    def parts_s(self) -> dict[str, float]:
        """What compressing by each kind was expected to add to backward.

        What communication slows is slower in all parts alike.
        """
        _, solution = self._posed
        alone_s = self.profile.backward_s + float(self._expected.times.compress_s.sum())
        slower = self._backward_s / alone_s if alone_s > 0 else 1.0
        parts: dict[str, float] = {}
        each = zip(solution.options, self._expected.times.compress_s, strict=True)
        for option, compress_s in each:
            kind = option.compressor.kind
            parts[kind] = parts.get(kind, 0.0) + slower * float(compress_s)
        return parts

    @property
    def alone_s(self) -> float:
        """What backward without compression was expected to take."""
        return self._backward_s - sum(self.parts_s.values())

    def messages(self) -> _Messages:
        """Return what each bucket's message took."""
        _, quick = self._posed_without_volume
        expected, latency_s = self._expected, quick.times().communicate_s
        busy_s = np.array([bucket.busy_s for bucket in self.seen.timing.buckets])
        whole_s = busy_s / expected.slowdown
        volume_s = expected.times.communicate_s - latency_s
        return _Messages(latency_s, volume_s, expected.times.codec_s, whole_s)

    def kinds(self) -> list[str]:
        """Return how each bucket is compressed."""
        _, solution = self._posed
        return [option.compressor.kind for option in solution.options]

    def probed(self, probes: Sequence[Probe]) -> _Messages:
        """Return what probes took."""
        nbytes = np.array([probe.nbytes for probe in probes])
        problem, _ = self._posed
        quick, _ = self._posed_without_volume
        latency_s = quick.prices.curve("allreduce")(nbytes)
        both_s = problem.prices.curve("allreduce")(nbytes)
        took_s = np.array([probe.seconds for probe in probes])
        return _Messages(latency_s, both_s - latency_s, 0 * took_s, took_s)

    def lasts_s(self, corrected: Correction) -> float:
        """Return an iteration at ``corrected`` costs."""
        problem, solution = self._at(
            corrected.profile(self.profile), corrected.network(self.network)
        )
        return problem.simulate(solution).iteration_s


def _computation(runs: Sequence[_Run]) -> tuple[float, dict[str, float]]:
    """Return the factors of backward, and of compressing by each kind."""
    parts = [run.parts_s for run in runs]
    kinds = sorted({kind for part in parts for kind in part if part[kind] > 0})
    columns = [[run.alone_s for run in runs]]
    columns += [[part.get(kind, 0.0) for part in parts] for kind in kinds]
    seconds = np.array([run.seen.timing.backward_s for run in runs])
    told = (seconds > 0) & (np.sum(columns, axis=0) > 0)
    common = _median([run.computation for run in runs])
    expected_s = common * np.array(columns)[:, told] / seconds[told]
    priors = [COMPUTATION_PRIOR] * len(expected_s)
    factors = _factors(expected_s, np.ones(int(told.sum())), priors)
    backward, *others = (_bounded(common * factor) for factor in factors)
    return backward, dict(zip(kinds, others, strict=True))


def _link(messages: _Messages) -> tuple[float, float]:
    """Return the factors of latency and of the time per byte that fit best.

    Of messages alike, a third one of coding is what explains them with the probes.
    """
    of = messages.shares
    parts = np.stack([of.latency_s, of.volume_s, of.coding_s])
    latency, per_byte, _ = _factors(parts, of.took_s, [LINK_PRIOR] * 3)
    return _bounded(latency), _bounded(per_byte)


def _coding(
    messages: _Messages, kinds: Sequence[str], latency: float, per_byte: float
) -> dict[str, float]:
    """Return the factors of encoding and decoding, by kind, behind such a link."""
    of = messages.shares
    left = of.took_s - latency * of.latency_s - per_byte * of.volume_s
    found = {}
    for kind in sorted(set(kinds)):
        told = np.array([each == kind for each in kinds]) & (messages.coding_s > 0)
        if told.any():
            parts = of.coding_s[told][None]
            (factor,) = _factors(parts, left[told], [COMPUTATION_PRIOR])
            found[kind] = _bounded(factor)
    return found


def _factors(
    expected: FloatArray, measured: FloatArray, priors: Sequence[float]
) -> list[float]:
    """Return by which factor each of [K, N] parts explains ``measured`` [N] best.

    Args:
        expected: the parts; what they do not tell apart they share.
        measured: what all of them were.
        priors: [K] what a factor counts that differs from 1.
    """
    kept = np.diag(np.sqrt(priors))
    factors, *_ = np.linalg.lstsq(
        np.concatenate([expected.T, kept]),
        np.concatenate([measured, kept.sum(axis=1)]),
    )
    found: list[float] = factors.tolist()
    return found


def _unexplained_s(found: Correction, runs: Sequence[_Run]) -> float:
    """Return how much longer iterations are: what misses them by the least shares."""
    left_s, weights = [], []
    for run in runs:
        if run.seen.iteration_s:
            left_s.append(run.seen.iteration_s - run.lasts_s(found))
            weights.append(1 / run.seen.iteration_s)
    return _weighted_median(left_s, weights) if left_s else 0.0


def _weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the value with half of all weight up to it."""
    order = np.argsort(values)
    reached = np.cumsum(np.asarray(weights)[order])
    middle = np.searchsorted(reached, reached[-1] / 2)
    return float(np.asarray(values)[order][middle])


def _median(ratios: Sequence[float]) -> float:
    return float(np.median(ratios))


def _ratio(measured_s: float, expected_s: float) -> float:
    if measured_s <= 0 or expected_s <= 0:
        return 1.0
    return _bounded(measured_s / expected_s)


def _bounded(factor: float) -> float:
    return min(LARGEST_FACTOR, max(1 / LARGEST_FACTOR, factor))
