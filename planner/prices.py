"""What a compressor costs: measured times on the device, exact bytes on the wire.

The profile holds the seconds to compress and decompress, measured at some sizes and
densities. They are interpolated, linearly in the number of elements and linearly in the
logarithm of the density, tensor by tensor, for compressors work tensor by tensor. (So
is padding, which takes VGC for up to 3 bytes a tensor longer than it is.) Compression
happens in a gradient's hook and delays backward; encoding and decoding happen on the
communication thread and delay the messages behind. Every rank's message has to be
decoded after an all-gather, one sum after an all-reduce or a gTop-k tree.

``ratio`` orders compressors by how much they leave out, for the least-compression rule
of the planner: 1 for dense, numel / k for sparse methods (LAGS: c), 32 bits over the
bits of a level for quantisers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np
from pydantic import ValidationError

from comm_plan.errors import InputError
from comm_plan.planner.collective_cost import collective_curve
from comm_plan.planner.curve import CostCurve, FloatArray, from_points
from comm_plan.planner.option import Leg, Option, prefix_sums
from comm_plan.plans.compression import (
    COLLECTIVES_OF,
    FLOAT32_NBYTES,
    INDEX_NBYTES,
    Bf16,
    CompressorSpec,
    Dense,
    Fp16,
    Hybrid,
    Qsgd,
    Strom,
    TernGrad,
    TopK,
    Variable,
    Vgc,
    selected,
)
from comm_plan.plans.network import Network
from comm_plan.plans.plan import MAX_INT8_RANKS
from comm_plan.plans.profile import CompressionCost, Profile, TensorTiming

DEFAULT_DENSITY = 0.01
DEFAULT_TAU = 0.01

SPARSE_NBYTES = FLOAT32_NBYTES + INDEX_NBYTES
_SCALER_NBYTES = 4
_LENGTH_NBYTES = 8


def method(name: str, **options: object) -> tuple[CompressorSpec, str]:
    """Return the spec and collective that a user's word for a method means.

    Args:
        name: one of :data:`METHODS`.
        options: fields of its spec that shall differ from the default, such as
            ``density`` of top-k or ``alpha`` of VGC; numbers may be text.

    Raises:
        InputError: no such method, no such field, or a value out of range.
    """
    if name not in METHODS:
        known = ", ".join(METHODS)
        raise InputError(f"compressor {name!r} is unknown: use one of {known}")
    spec, collective = METHODS[name]
    given = {key: _read(value) for key, value in options.items()}
    try:
        return type(spec).model_validate(spec.model_dump() | given), collective
    except ValidationError as error:
        problem = error.errors()[0]
        fields = ", ".join(key for key in type(spec).model_fields if key != "kind")
        raise InputError(
            f"compressor {name}: {problem['loc'][0]} {problem['input']}: "
            f"{problem['msg'].lower()}; it has {fields or 'no options'}"
        ) from None


def _read(value: object) -> object:
    """Return a whole number written as text as a number: pydantic's literals ask so."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


METHODS: dict[str, tuple[CompressorSpec, str]] = {
    "dense": (Dense(), "allreduce"),
    "fp16": (Fp16(), "allreduce"),
    "bf16": (Bf16(), "allreduce"),
    "qsgd": (Qsgd(), "allgather"),
    "terngrad": (TernGrad(), "allgather"),
    "terngrad-allreduce": (TernGrad(), "allreduce"),
    "topk": (TopK(density=DEFAULT_DENSITY), "allgather"),
    "gtopk": (TopK(density=DEFAULT_DENSITY), "gtopk"),
    "vgc": (Vgc(), "allgather"),
    "strom": (Strom(tau=DEFAULT_TAU), "allgather"),
    "hybrid": (Hybrid(tau=DEFAULT_TAU), "allgather"),
}
"""What a user may ask for by name; collective and compressor together."""


def ratio(spec: CompressorSpec) -> float:
    """Return how much ``spec`` leaves out, as a factor; 1: nothing."""
    if isinstance(spec, TopK):
        return 1 / min(spec.densities(1))
    if isinstance(spec, Variable):
        return 1 / spec.expected_density
    if isinstance(spec, Qsgd):
        return 32 / spec.bits
    return {"fp16": 2.0, "bf16": 2.0, "terngrad": 20.0}.get(spec.kind, 1.0)


def _density_of(spec: CompressorSpec, tensors: int) -> FloatArray:
    if isinstance(spec, TopK):
        return np.array(spec.densities(tensors))
    if isinstance(spec, Variable):
        return np.full(tensors, spec.expected_density)
    return np.ones(tensors)


@dataclass(frozen=True, eq=False)
class DeviceCost:
    """Measured seconds of one compressor, by elements and density.

    Attributes:
        densities: [D] measured, increasing.
        compress: [D] curves over elements: what delays backward.
        encode: [D] curves over elements: on the communication thread, before sending.
        decompress: [D] curves over elements, one message each.
    """

    densities: FloatArray
    compress: tuple[CostCurve, ...]
    encode: tuple[CostCurve, ...]
    decompress: tuple[CostCurve, ...]

    @classmethod
    def measured(cls, costs: tuple[CompressionCost, ...]) -> DeviceCost:
        """Return the interpolation of a profile's entries for one compressor."""
        densities = sorted({cost.density for cost in costs})
        groups = [
            sorted((c for c in costs if c.density == d), key=lambda c: c.numel)
            for d in densities
        ]
        return cls(
            np.array(densities),
            *(
                tuple(_curve({c.numel: getattr(c, name) for c in g}) for g in groups)
                for name in ("compress_s", "encode_s", "decompress_s")
            ),
        )

    def seconds(
        self, numel: FloatArray, density: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return seconds to compress, encode and decompress one message, [L] each.

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
            table = np.stack([curve(numel) for curve in curves])
            mixed = (1 - share) * table[low, rows] + share * table[high, rows]
            return np.asarray(mixed, dtype=np.float64)

        return between(self.compress), between(self.encode), between(self.decompress)


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
            compressed. None: only TernGrad keeps one dense, the last layer, whose
            gradient is ready first, as its paper does.
    """

    profile: Profile
    network: Network
    world_size: int
    dense_layers: tuple[str, ...] | None = None
    _curves: dict[str, CostCurve] = field(default_factory=dict, repr=False)

    def curve(self, collective: str) -> CostCurve:
        """Return what ``collective`` costs.

        Raises:
            InputError: the network says nothing about it.
        """
        if collective not in self._curves:
            self._curves[collective] = collective_curve(
                self.network, collective, self.world_size
            )
        return self._curves[collective]

    def option(self, spec: CompressorSpec, collective: str | None = None) -> Option:
        """Return ``spec`` by ``collective`` (None: its default), priced.

        Raises:
            InputError: the profile or the network lacks a cost that it needs.
        """
        collective = collective or COLLECTIVES_OF[spec.kind][0]
        compress, encode, decompress = self._device_seconds(spec)
        messages = self.world_size if collective == "allgather" else 1
        return Option(
            compressor=spec,
            collective=collective,
            ratio=ratio(spec),
            legs=tuple(self._legs(spec, collective)),
            compress_s=prefix_sums(compress),
            codec_s=prefix_sums(encode + decompress * messages),
            allowed=np.array([self._allowed(spec, t) for t in self.profile.tensors]),
        )

    def can(self, spec: CompressorSpec, collective: str) -> bool:
        """Return whether everything is known to price ``spec`` by ``collective``."""
        try:
            self.option(spec, collective)
        except InputError:
            return False
        return True

    def _allowed(self, spec: CompressorSpec, tensor: TensorTiming) -> bool:
        if spec.kind == "dense":
            return True
        if self.dense_layers is None:
            last = self.profile.tensors[0].layer
            kept = spec.kind == "terngrad" and tensor.layer == last
        else:
            names = (tensor.layer, tensor.name)
            kept = any(fnmatchcase(n, p) for p in self.dense_layers for n in names)
        return tensor.dtype == "float32" and not kept

    def _device_seconds(
        self, spec: CompressorSpec
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        costs = self.profile.compression.get(spec.kind)
        numel = np.array([float(t.numel) for t in self.profile.tensors])
        if costs:
            return DeviceCost.measured(costs).seconds(
                numel, _density_of(spec, len(numel))
            )
        if spec.kind == "dense":
            free = np.zeros(len(numel))
            return free, free, free
        raise InputError(
            f"profile has no compression costs for {spec.kind}: profile again with it, "
            "or add them to the profile's compression"
        )

    def _legs(self, spec: CompressorSpec, collective: str) -> Iterator[Leg]:
        tensors = self.profile.tensors
        if isinstance(spec, TernGrad):
            scalers = prefix_sums(np.full(len(tensors), _SCALER_NBYTES))
            yield Leg(self.curve("allreduce"), scalers)
        if isinstance(spec, Variable):
            lengths = _LENGTH_NBYTES * self.world_size
            yield Leg(self.curve("allgather"), np.zeros(len(tensors) + 1), lengths)
        copies = self.world_size if collective == "allgather" else 1
        shares = np.array(self._message_nbytes(spec, collective), dtype=np.float64)
        yield Leg(self.curve(collective), prefix_sums(copies * shares))

    def _message_nbytes(self, spec: CompressorSpec, collective: str) -> list[int]:
        tensors = self.profile.tensors
        if spec.kind == "dense":
            return [tensor.nbytes for tensor in tensors]
        if isinstance(spec, TernGrad) and collective == "allreduce":
            self._check_int8()
            return [tensor.numel for tensor in tensors]
        if isinstance(spec, TopK):
            each = zip(tensors, spec.densities(len(tensors)), strict=True)
            return [SPARSE_NBYTES * selected(t.numel, density) for t, density in each]
        return [spec.message_nbytes([tensor.numel]) for tensor in tensors]

    def _check_int8(self) -> None:
        if self.world_size > MAX_INT8_RANKS:
            raise InputError(
                f"terngrad-allreduce counts in int8, at most {MAX_INT8_RANKS} ranks, "
                f"here are {self.world_size}: use terngrad"
            )
