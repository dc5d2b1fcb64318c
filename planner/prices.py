"""What a compressor costs: measured times on the device, exact bytes on the wire.

The profile holds the seconds to compress and decompress, measured at some sizes and
densities. They are interpolated, linearly in the number of elements and linearly in the
logarithm of the density, tensor by tensor, for compressors work tensor by tensor. (So
is padding, which takes VGC for up to 3 bytes a tensor longer than it is.) To send fewer
elements takes no longer: where a lower density was measured to, chance did it, and both
count as what lies midway. Compression
happens in a gradient's hook and delays backward; encoding and decoding happen on the
communication thread and delay the messages behind; a part of that is once a bucket,
whatever its tensors. So does, by the byte, what a sum takes longer than in float32.
Second moments delay backward too, each tensor's by its share of the elements. Every
rank's message has to be decoded after an all-gather, one sum after an all-reduce or a
gTop-k tree; in two passes a rank encodes its part again and decodes twice
(:class:`~comm_plan.collectives.collective.Codings`).

A sparse gradient is a bucket of its own, whatever the option: its rows are gathered
(:class:`~comm_plan.plans.compression.rows.Rows`). That takes what the bytes of the rows
take that the profile saw; summing them costs nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np

from comm_plan.arrays import FloatArray
from comm_plan.collectives.collective import Codings
from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.errors import InputError
from comm_plan.planner import low_rank
from comm_plan.planner.collective_cost import collective_curve
from comm_plan.planner.curve import CostCurve, from_points
from comm_plan.planner.option import Leg, Option, prefix_sums
from comm_plan.plans.compression import Dense, PowerSgd, Spec
from comm_plan.plans.compression.spec import LENGTH_NBYTES
from comm_plan.plans.network import Network
from comm_plan.plans.profile import CompressionCost, Profile, TensorTiming


@dataclass(frozen=True, eq=False)
class DeviceCost:
    """Measured seconds of one compressor, by elements and density.

    Attributes:
        densities: [D] measured, increasing.
        compress: [D] curves over elements: what delays backward.
        codec: [D] curves over elements: what keeps the communication thread.
        bucket: [D] what keeps it besides, once a bucket.
    """

    densities: FloatArray
    compress: tuple[CostCurve, ...]
    codec: tuple[CostCurve, ...]
    bucket: FloatArray

    @classmethod
    def measured(
        cls,
        costs: tuple[CompressionCost, ...],
        coded: Codings,
        share_encoded: float = 1.0,
        momentum_correction: bool = False,
    ) -> DeviceCost:
        """Return the interpolation of a profile's entries for one compressor.

        Args:
            costs: the entries.
            coded: how often messages are encoded and decoded.
            share_encoded: of its tensors, how much a rank encodes.
            momentum_correction: momentum is applied before compression.
        """

        def compress_s(cost: CompressionCost) -> float:
            return cost.compress_s + momentum_correction * cost.momentum_s

        def codec_s(cost: CompressionCost) -> float:
            return cost.codec_s(
                coded.decoded,
                coded.encoded * share_encoded,
                momentum_correction=momentum_correction,
            )

        densities = sorted({cost.density for cost in costs})
        groups = [
            sorted((c for c in costs if c.density == d), key=lambda c: c.numel)
            for d in densities
        ]
        return cls(
            np.array(densities),
            tuple(_curve({c.numel: compress_s(c) for c in g}) for g in groups),
            tuple(_curve({c.numel: codec_s(c) for c in g}) for g in groups),
            _rising(np.array([g[0].bucket_s(coded.encoded) for g in groups])),
        )

    def seconds(
        self, numel: FloatArray, density: FloatArray
    ) -> tuple[FloatArray, FloatArray, float]:
        """Return seconds on the compute stream and on the communication thread, [L].

        And what a bucket takes of that thread besides, at the mean density.

        Args:
            numel: [L] elements.
            density: [L]; held at the nearest measured one outside their range.
        """
        position = np.interp(
            np.log(density), np.log(self.densities), np.arange(len(self.densities))
        )
        low = position.astype(np.int64)
        high = np.minimum(low + 1, len(self.densities) - 1)
        share = position - low
        rows = np.arange(len(numel))

        def between(curves: tuple[CostCurve, ...]) -> FloatArray:
            table = _rising(np.stack([curve(numel) for curve in curves]))
            mixed = (1 - share) * table[low, rows] + share * table[high, rows]
            return np.asarray(mixed, dtype=np.float64)

        bucket_s = np.interp(position.mean(), np.arange(len(self.bucket)), self.bucket)
        return between(self.compress), between(self.codec), float(bucket_s)


def _rising(seconds: FloatArray) -> FloatArray:
    """Return [D, ...] seconds that do not fall: what does is evened out."""
    highest = np.maximum.accumulate(seconds)
    lowest = np.minimum.accumulate(seconds[::-1])[::-1]
    return (highest + lowest) / 2


def _curve(seconds: Mapping[int, float]) -> CostCurve:
    return from_points(list(seconds), list(seconds.values()))


@dataclass(frozen=True, eq=False)
class Prices:
    """What any option costs for one model on one network at one world size.

    Attributes:
        profile: the model, and what compressors cost on its device.
        network: what collectives cost.
        world_size: P.
        dense_layers: patterns (``fnmatch``) of layers or tensors that are never
            compressed. None: the last layer, whose gradient is ready first, of
            the methods whose specs say so.
        algorithm: the closed form that carries costs to another world size, for the
            collectives that have one of this name; None: each one's first.
        momentum_correction: momentum is applied before compression.
    """

    profile: Profile
    network: Network
    world_size: int
    dense_layers: tuple[str, ...] | None = None
    algorithm: str | None = None
    momentum_correction: bool = False
    _curves: dict[str, CostCurve] = field(default_factory=dict, init=False, repr=False)
    _devices: dict[tuple[str, Codings, float], DeviceCost] = field(
        default_factory=dict, init=False, repr=False
    )

    @cached_property
    def dense(self) -> Option:
        """Sending gradients as they are.

        Raises:
            InputError: the network says nothing about all-reduce.
        """
        return self.option(Dense())

    def at(self, profile: Profile, network: Network) -> Prices:
        """Return the prices at other costs of the same model."""
        return replace(self, profile=profile, network=network)

    def curve(self, collective: str) -> CostCurve:
        """Return what ``collective`` costs.

        Raises:
            InputError: the network says nothing about it.
        """
        if collective not in self._curves:
            self._curves[collective] = collective_curve(
                self.network, collective, self.world_size, self.algorithm
            )
        return self._curves[collective]

    def option(self, spec: Spec, collective: str | None = None) -> Option:
        """Return ``spec`` by ``collective`` (None: its default), priced.

        Raises:
            InputError: the profile or the network lacks a cost that it needs, or the
                model has no second moments.
        """
        collective = collective or spec.default_collective()
        problem = spec.too_many_ranks(collective, self.world_size)
        if problem is not None:
            raise InputError(problem)
        moments = self.profile.second_moments
        if spec.needs_second_moments and moments is not None and not moments.fit:
            raise InputError(
                f"{spec.kind} needs second moments, which {self.profile.model.name} "
                f"has not: {moments.objection}, and a batch of "
                f"{self.profile.batch_size} is not cut into micro-batches: use another "
                "compressor or batch size"
            )
        coded = COLLECTIVES[collective].coded(self.world_size)
        compress, codec, bucket_s = self._device_seconds(spec, coded)
        codec = codec + self._summing_s(spec, collective)
        if spec.lossless and self.world_size == 1:  # one rank sends nothing
            compress, codec = np.zeros_like(compress), np.zeros_like(codec)
            bucket_s = 0.0
        is_dense = np.isnan(self._rows_s)
        compress, codec = compress * is_dense, codec * is_dense
        return Option(
            compressor=spec,
            collective=collective,
            ratio=spec.ratio,
            legs=tuple(self._legs(spec, collective)),
            compress_s=prefix_sums(compress),
            codec_s=prefix_sums(codec),
            bucket_s=bucket_s,
            allowed=np.array(self.allowed(spec)),
            rows_s=self._rows_s,
            rows_startup_s=self._rows_startup_s,
        )

    def allowed(self, spec: Spec) -> list[bool]:
        """Return which tensors may go by ``spec``."""
        return [self._allowed(spec, tensor) for tensor in self.profile.tensors]

    def expected(self, spec: Spec) -> Spec:
        """Return ``spec``, where the data decides, as it was seen to send."""
        seen = self.profile.sent.get(spec.kind)
        if seen is None:
            return spec
        density = seen.by(momentum_correction=self.momentum_correction)
        return spec if density is None else spec.expecting(density)

    def fitted(self, spec: Spec, collective: str | None = None) -> Option:
        """Return :meth:`option` of ``spec`` as it is meant for the model's tensors.

        Raises:
            InputError: as there; or PowerSGD's ranks shall be chosen by layer, and the
                profile does not say what they leave out.
        """
        tensors = self.profile.tensors
        if isinstance(spec, PowerSgd) and spec.bytes_of is not None:
            spec = low_rank.allocated(spec.bytes_of, tensors, self.allowed(spec))
        shapes = [tensor.shape for tensor in tensors]
        return self.option(self.expected(spec).fitted(shapes), collective)

    @cached_property
    def _rows_s(self) -> FloatArray:
        """[L] seconds of gathering the rows of sparse gradients; NaN for dense ones.

        Raises:
            InputError: there are some, and the network says nothing about all-gather.
        """
        return np.array([self._gathering_s(t) for t in self.profile.tensors])

    @property
    def _rows_startup_s(self) -> float:
        """What of those seconds there would be without rows: of both all-gathers."""
        has_rows = any(tensor.rows is not None for tensor in self.profile.tensors)
        return 2 * self.curve("allgather").startup_s if has_rows else 0.0

    def _gathering_s(self, tensor: TensorTiming) -> float:
        if tensor.rows is None:
            return math.nan
        curve, ranks = self.curve("allgather"), self.world_size
        lengths, rows = ranks * LENGTH_NBYTES, ranks * tensor.rows_nbytes
        return float(curve(np.array(lengths)) + curve(np.array(rows)))

    @cached_property
    def _last_layer(self) -> str:
        """The layer whose gradient is ready first, whenever it is sent."""
        return min(self.profile.tensors, key=lambda each: each.ready_s).layer

    def _allowed(self, spec: Spec, tensor: TensorTiming) -> bool:
        if spec.lossless:
            return True
        if tensor.rows is not None:
            return False
        if self.dense_layers is None:
            kept = spec.keeps_last_layer and tensor.layer == self._last_layer
        else:
            names = (tensor.layer, tensor.name)
            kept = any(fnmatchcase(n, p) for p in self.dense_layers for n in names)
        return tensor.dtype in spec.dtypes and not kept

    def _device_seconds(
        self, spec: Spec, coded: Codings
    ) -> tuple[FloatArray, FloatArray, float]:
        costs = self.profile.compression.get(spec.kind)
        numel = np.array([float(t.numel) for t in self.profile.tensors])
        if costs:
            share = spec.share_encoded(self.world_size)
            key = spec.kind, coded, share
            if key not in self._devices:
                self._devices[key] = DeviceCost.measured(
                    costs, coded, share, self.momentum_correction
                )
            densities = np.array(spec.densities(len(numel)))
            compress, codec, bucket_s = self._devices[key].seconds(numel, densities)
            if spec.needs_second_moments:
                compress = compress + self._second_moments_s * numel / numel.sum()
            return compress, codec, bucket_s
        if spec.lossless:
            free = np.zeros(len(numel))
            return free, free, 0.0
        how = f"profile again with --compressors {spec.kind} (or all)"
        if "synthetic" in self.profile.environment:
            how = "profile the model on a device, as here nothing was measured"
        raise InputError(
            f"profile has no compression costs for {spec.kind}: {how}, or add them to "
            "its compression"
        )

    def _summing_s(self, spec: Spec, collective: str) -> FloatArray:
        """Return [L] seconds by which sums take longer than those of float32."""
        cost = self.network.collectives.get(collective)
        longer = {} if cost is None else cost.summing
        dtypes = (spec.summed_as(t.dtype, collective) for t in self.profile.tensors)
        per_byte = np.array([longer.get(dtype, 0.0) for dtype in dtypes])
        if not per_byte.any():
            return per_byte
        here, there = (1 - 1 / p for p in (self.world_size, self.network.world_size))
        nbytes = np.array(self._message_nbytes(spec, collective))
        return np.asarray(per_byte * nbytes * (here / there if there else 0.0))

    @property
    def _second_moments_s(self) -> float:
        """Seconds that second moments of all parameters take; 0: not measured."""
        moments = self.profile.second_moments
        return 0.0 if moments is None else moments.extra_s or 0.0

    def _legs(self, spec: Spec, collective: str) -> Iterator[Leg]:
        tensors = len(self.profile.tensors)
        if spec.agreed_nbytes:
            agreed = prefix_sums(np.full(tensors, spec.agreed_nbytes))
            yield Leg(self.curve("allreduce"), agreed)
        gathered = [
            spec.restricted_to(i, i + 1).gathered_nbytes([tensor.numel])
            for i, tensor in enumerate(self.profile.tensors)
        ]
        if any(gathered):
            yield Leg(self.curve("allgather"), prefix_sums(gathered))
        if spec.length_nbytes:
            lengths = self._buffer_nbytes("allgather", spec.length_nbytes)
            yield Leg(self.curve("allgather"), np.zeros(tensors + 1), lengths)
        shares = [
            self._buffer_nbytes(collective, nbytes)
            for nbytes in self._message_nbytes(spec, collective)
        ]
        yield Leg(self.curve(collective), prefix_sums(shares))

    def _buffer_nbytes(self, collective: str, message_nbytes: int) -> int:
        return COLLECTIVES[collective].buffer_nbytes(message_nbytes, self.world_size)

    def _message_nbytes(self, spec: Spec, collective: str) -> list[int]:
        """Return [L] each tensor's share of the message."""
        tensors = self.profile.tensors
        if spec.lossless:
            return [tensor.nbytes for tensor in tensors]
        return [
            spec.restricted_to(i, i + 1).planned_nbytes([tensor.shape], collective)
            for i, tensor in enumerate(tensors)
        ]
