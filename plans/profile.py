"""The profile: what one model costs on one device, without communication."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from itertools import groupby
from typing import Annotated, ClassVar

from pydantic import Field, model_validator
from typing_extensions import Self

from comm_plan.plans.compression.rows import ROW_INDEX_NBYTES
from comm_plan.plans.compression.spec import Density
from comm_plan.plans.document import (
    MAX_BATCH_SIZE,
    MAX_INTEGER,
    MAX_TENSORS,
    Count,
    Document,
    Name,
    Numel,
    PositiveCount,
    Ranks,
    Seconds,
    Sentence,
    Value,
)

DTYPE_NBYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "complex64": 8,
    "complex128": 16,
}


def fingerprint(tensors: Iterable[tuple[str, tuple[int, ...], str]]) -> str:
    """Return the fingerprint of a model: what a plan for it depends on.

    Args:
        tensors: name, shape and dtype (such as ``float32``) of each trainable
            parameter, in any order.

    Returns:
        ``sha256:`` and 64 hexadecimal digits.
    """
    lines = sorted(f"{name} {list(shape)} {dtype}" for name, shape, dtype in tensors)
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


class Model(Value):
    """Which model: its name, its fingerprint, and its number of trainable numbers."""

    name: Name
    fingerprint: Name
    parameters: PositiveCount


class Device(Value):
    """Where the profile was measured: ``cpu`` or ``cuda``, and the device's name."""

    type: Name
    name: Name


class RankError(Value):
    """What the best approximation of a gradient by a matrix of ``rank`` leaves out.

    ``squared_error``: the squared norm of that, of gradients as the ranks average them.
    """

    rank: PositiveCount
    squared_error: Annotated[float, Field(ge=0, le=1e30)]


class TensorTiming(Value):
    """One parameter tensor and when its gradient is ready.

    ``ready_s`` counts from the start of backward. ``rows``: of its first dimension, so
    many are in a gradient, which is sparse; None: it is dense. ``low_rank``: how well
    low-rank matrices approximate it; None: not measured, or it is no matrix.
    """

    name: Name
    layer: Name
    shape: Annotated[tuple[Numel, ...], Field(max_length=64)]
    numel: PositiveCount
    dtype: Name
    ready_s: Seconds
    rows: Count | None = None
    low_rank: Annotated[tuple[RankError, ...], Field(max_length=64)] | None = None

    @property
    def nbytes(self) -> int:
        """Size of the gradient in bytes, if it were dense."""
        return self.numel * DTYPE_NBYTES[self.dtype]

    @property
    def rows_nbytes(self) -> int:
        """Bytes that one rank sends of the gradient's rows; 0 if it is dense."""
        if not self.rows:
            return 0
        return self.rows * (ROW_INDEX_NBYTES + self.nbytes // self.shape[0])

    @model_validator(mode="after")
    def _check(self) -> Self:
        if math.prod(self.shape) != self.numel:
            raise ValueError(
                f"numel {self.numel} of tensor {self.name} is not the product of its "
                f"shape {list(self.shape)}"
            )
        if self.rows is not None and not self.rows <= (*self.shape, 0)[0]:
            raise ValueError(
                f"rows {self.rows} of tensor {self.name} is above the first of its "
                f"shape {list(self.shape)}"
            )
        if self.dtype not in DTYPE_NBYTES:
            known = ", ".join(DTYPE_NBYTES)
            raise ValueError(
                f"dtype {self.dtype!r} of tensor {self.name} is none of {known}"
            )
        return self


class CompressionCost(Value):
    """What one compressor costs on the profiled device at one size and density.

    ``compress_s``: what delays backward: add the gradient to the state, select.
    ``encode_s``: what the communication thread does before it sends.
    ``decompress_s``: decode one rank's message into the averaged gradient.
    ``another_s``: what each further rank's message adds to that; None: as much again.
    ``momentum_s``: what momentum correction adds to ``compress_s``, less what the
    optimizer is spared; ``momentum_encode_s``: what it adds to ``encode_s``.
    ``bucket_encode_s``, ``bucket_decode_s``: what a bucket takes besides, whatever its
    tensors.
    ``density`` is 1 for compressors that send every element.
    """

    numel: Numel
    density: Annotated[float, Field(ge=1e-12, le=1)] = 1.0
    compress_s: Seconds
    encode_s: Seconds = 0.0
    decompress_s: Seconds
    another_s: Seconds | None = None
    momentum_s: Seconds = 0.0
    momentum_encode_s: Seconds = 0.0
    bucket_encode_s: Seconds = 0.0
    bucket_decode_s: Seconds = 0.0

    def codec_s(
        self,
        decoded: float,
        encoded: float = 1,
        *,
        momentum_correction: bool = False,
    ) -> float:
        """Return what the communication thread needs for so many messages."""
        another_s = self.decompress_s if self.another_s is None else self.another_s
        encode_s = self.encode_s + momentum_correction * self.momentum_encode_s
        decode_s = self.decompress_s + (decoded - 1) * another_s
        return encoded * encode_s + decode_s

    def bucket_s(self, encoded: float = 1) -> float:
        """Return what the communication thread needs for a bucket, besides."""
        return encoded * self.bucket_encode_s + self.bucket_decode_s

    def longer(self, *, compress: float = 1.0, coding: float = 1.0) -> Self:
        """Return the cost with what delays backward, and the thread, so much longer."""
        another_s = self.another_s
        return self.model_copy(
            update={
                "compress_s": self.compress_s * compress,
                "momentum_s": self.momentum_s * compress,
                "encode_s": self.encode_s * coding,
                "momentum_encode_s": self.momentum_encode_s * coding,
                "decompress_s": self.decompress_s * coding,
                "another_s": None if another_s is None else another_s * coding,
                "bucket_encode_s": self.bucket_encode_s * coding,
                "bucket_decode_s": self.bucket_decode_s * coding,
            }
        )


class Spread(Value):
    """5th and 95th percentiles of a measured time over the iterations."""

    p05_s: Seconds
    p95_s: Seconds


Rate = Annotated[float, Field(ge=1e-9, le=1)]

ROUNDING = 1e-9
"""Rates that are together so little below 1 are together 1."""


class Rates(Value):
    """How fast two things go beside each other; 1: as fast as alone.

    ``compute`` is that of the computation, ``channel`` that of what the communication
    thread is doing. What two share they cannot lose both, so together they are at
    least 1.
    """

    compute: Rate = 1.0
    channel: Rate = 1.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.compute + self.channel < 1 - ROUNDING:
            raise ValueError(
                f"rates of {self.compute} and {self.channel} are together below 1: "
                "one after the other would be faster"
            )
        return self


class PhaseRates(Value):
    """How fast what the compute stream does and each phase of a message go on.

    Beside each other. ``startup``: while messages start up; ``transfer``: while their
    bytes travel; ``codec``: while the communication thread encodes or decodes.
    """

    startup: Rates = Rates()
    transfer: Rates = Rates()
    codec: Rates = Rates()


class Contention(PhaseRates):
    """How computation and communication of ``world_size`` ranks slow each other.

    ``compressing``: the same while the compute stream compresses, not computes; None:
    not measured, it is taken to be alike.
    """

    world_size: Ranks
    compressing: PhaseRates | None = None


class SecondMoments(Value):
    """How the per-sample second moments can be had that VGC and hybrid need.

    ``objection``: why there are no exact ones; None: there are.
    ``micro_batches``: into how many a batch can be cut to estimate them; None: into
    none. ``extra_s``: what an iteration takes longer that has them of all parameters,
    exact ones where there are; None: not measured.
    """

    objection: Sentence | None = None
    micro_batches: Annotated[int, Field(ge=2, le=MAX_BATCH_SIZE)] | None = None
    extra_s: Seconds | None = None

    @property
    def fit(self) -> bool:
        """Whether they can be had at all."""
        return self.objection is None or self.micro_batches is not None


class Sent(Value):
    """Which share of its elements a rank sends by a method that lets the data decide.

    Of the rank that sends most, of the model's own gradients, by the method's default
    options. ``corrected``: with momentum correction; None: not measured.
    """

    density: Density
    corrected: Density | None = None

    def by(self, *, momentum_correction: bool) -> float | None:
        """Return the density with momentum correction, or without; None: unknown."""
        return self.corrected if momentum_correction else self.density


class Profile(Document):
    """Times and sizes of a model's gradients, in the order in which they get ready.

    ``waiting_s`` is what an iteration takes beyond its parts because the ranks wait for
    each other. ``handoff_s`` passes before the communication thread, if it has nothing
    to do, takes a bucket that is ready. Without ``contention`` computation and
    communication are taken not to slow each other. Without ``second_moments`` it is not
    known how they can be had. ``sent`` is by kind of compressor. ``stolen``: the share
    of its processors' time that a virtual machine did not get meanwhile, of the rank
    where it was largest.
    """

    SCHEMA: ClassVar[str] = "comm-plan/profile"

    model: Model
    device: Device
    environment: dict[Name, Sentence] = {}
    batch_size: Annotated[int, Field(gt=0, le=MAX_BATCH_SIZE)]
    forward_s: Seconds
    backward_s: Seconds
    update_s: Seconds
    tensors: Annotated[
        tuple[TensorTiming, ...], Field(min_length=1, max_length=MAX_TENSORS)
    ]
    waiting_s: Seconds = 0.0
    handoff_s: Seconds = 0.0
    compression: dict[Name, tuple[CompressionCost, ...]] = {}
    iterations: PositiveCount | None = None
    forward_spread: Spread | None = None
    backward_spread: Spread | None = None
    contention: Contention | None = None
    second_moments: SecondMoments | None = None
    sent: dict[Name, Sent] = {}
    stolen: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        seen: set[str] = set()
        for tensor in self.tensors:
            if tensor.name in seen:
                raise ValueError(f"tensor {tensor.name} is listed twice")
            seen.add(tensor.name)
        if self.nbytes > MAX_INTEGER:
            raise ValueError(f"gradients have {self.nbytes} bytes, above 2^53")
        previous = self.tensors[0]
        for tensor in self.tensors[1:]:
            if tensor.ready_s < previous.ready_s:
                raise ValueError(
                    f"tensors are not in ready order: {tensor.name} is ready at "
                    f"{tensor.ready_s} s, {previous.name} before it at "
                    f"{previous.ready_s} s: sort them by ready_s"
                )
            previous = tensor
        return self

    @property
    def backward_start_s(self) -> float:
        """When backward begins, from the start of an iteration."""
        return self.waiting_s + self.forward_s

    def slower(self, *, forward: float, backward: float) -> Self:
        """Return the profile with forward, and backward with all in it, so much longer.

        They scatter by as much of their median as before.
        """
        tensors = tuple(
            tensor.model_copy(update={"ready_s": tensor.ready_s * backward})
            for tensor in self.tensors
        )
        changes = {
            "forward_s": self.forward_s * forward,
            "forward_spread": _times(self.forward_spread, forward),
            "backward_s": self.backward_s * backward,
            "backward_spread": _times(self.backward_spread, backward),
            "tensors": tensors,
        }
        return self.model_copy(update=changes)

    def lasting(self, iteration_s: float) -> Self:
        """Return the profile with all of the model's times scaled to this iteration.

        Raises:
            ValueError: forward, backward and update take no time at all.
        """
        total_s = self.forward_s + self.backward_s + self.update_s
        if not total_s > 0:
            raise ValueError("a profile without times cannot be scaled")
        factor = iteration_s / total_s
        slower = self.slower(forward=factor, backward=factor)
        return slower.model_copy(update={"update_s": self.update_s * factor})

    def by_layer(self) -> Self:
        """Return the profile with the tensors of each layer as one, ready as its last.

        Neighbours of the same layer and dtype: a layer's weight and bias. A tensor
        whose gradient is sparse stays by itself.
        """

        def kind(tensor: TensorTiming) -> tuple[str, str, str | None]:
            apart = None if tensor.rows is None else tensor.name
            return tensor.layer, tensor.dtype, apart

        groups = [tuple(members) for _, members in groupby(self.tensors, key=kind)]
        return self.model_copy(update={"tensors": tuple(map(_as_one, groups))})

    @property
    def threads(self) -> int | None:
        """How many PyTorch had, where the CPU is the device and it is known."""
        told = self.environment.get("threads", "")
        is_known = self.device.type == "cpu" and re.fullmatch("[1-9][0-9]{0,5}", told)
        return int(told) if is_known else None

    @property
    def nbytes(self) -> int:
        """Size of all gradients in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)


def _times(spread: Spread | None, factor: float) -> Spread | None:
    if spread is None:
        return None
    return spread.model_copy(
        update={"p05_s": spread.p05_s * factor, "p95_s": spread.p95_s * factor}
    )


def _as_one(members: tuple[TensorTiming, ...]) -> TensorTiming:
    """Return tensors of one layer as one, called as the first; one alone as it is."""
    if len(members) == 1:
        return members[0]
    shape = _merged_shape(members)
    merged = {"shape": shape, "numel": math.prod(shape), "low_rank": None}
    return members[0].model_copy(update={**merged, "ready_s": members[-1].ready_s})


def _merged_shape(members: tuple[TensorTiming, ...]) -> tuple[int, ...]:
    """Return the shape of tensors as one: the rows of the largest matrix, if they fit.

    A convolution [64, 3, 7, 7] and its bias [64] are [64, 148]; where the elements do
    not fill such rows, they are one row; without a matrix among them, a vector.
    """
    numel = sum(member.numel for member in members)
    matrices = [member for member in members if len(member.shape) > 1]
    if not matrices:
        return (numel,)
    rows = max(matrices, key=lambda member: member.numel).shape[0]
    return (rows, numel // rows) if numel % rows == 0 else (1, numel)
