"""What ranks run in tests: functions of a transport, importable from every process."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from comm_plan.collectives.message import Message, message_nbytes
from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.compressors import build
from comm_plan.compressors.base import RESIDUAL, Compressor, Context, Slot
from comm_plan.compressors.momentum import Momentum
from comm_plan.transports.base import Transport


@dataclass
class Recorder:
    """The least codec: sends a given message and remembers what it was told.

    For gTop-k and SparDL, ``counts`` are its slots' entries and ``residuals`` collect,
    per slot, what is put back, by index.
    """

    message: Message
    variable_length: bool = False
    counts: Sequence[int] = ()
    scaler: float | None = None
    received: list[Message] = field(default_factory=list)
    residuals: list[dict[int, float]] = field(default_factory=list)

    def agree(self, ranks):
        """Share the scaler."""
        if self.scaler is not None:
            shared = torch.tensor([self.scaler], device=ranks.device)
            ranks.all_reduce(shared, "max")
            self.scaler = shared.item()

    def encode(self):
        """Send a copy."""
        self.residuals = [{} for _ in self.counts]
        return tuple(tensor.clone() for tensor in self.message)

    def decode(self, messages):
        """Keep what came."""
        self.received = [tuple(t.cpu().clone() for t in m) for m in messages]

    def put_back(self, index, values, indices):
        """Add."""
        residual = self.residuals[index]
        for i, value in zip(indices.tolist(), values.tolist(), strict=True):
            residual[i] = residual.get(i, 0.0) + value


def aggregate(
    transport: Transport, collective: str, codecs: Sequence[Recorder]
) -> tuple[Recorder, int]:
    """Aggregate this rank's of ``codecs``; return it and the bytes it contributed."""
    codec = codecs[transport.rank]
    message = codec.message
    codec.message = tuple(tensor.to(transport.device) for tensor in message)
    nbytes = COLLECTIVES[collective].aggregate(transport, codec)
    codec.message = message
    return codec, nbytes


@dataclass
class Step:
    """What one rank saw of one step; tensors [numel of the bucket]."""

    gradient: torch.Tensor
    applied: torch.Tensor  # the mean over ranks; zero in a step that was undone
    residual_before: torch.Tensor
    residual_after: torch.Tensor
    contributed_nbytes: int  # as the aggregation says
    message_nbytes: int  # of what encode returned
    message_tensors: int


@dataclass(frozen=True)
class Training:
    """Some steps of one bucket, equal on all ranks but for the gradients."""

    spec: Any
    collective: str
    shapes: Sequence[tuple[int, ...]]
    undone: Sequence[bool]  # for every step
    seed: int

    @property
    def numels(self) -> list[int]:
        """Elements of each tensor."""
        return [math.prod(shape) for shape in self.shapes]


def train(transport: Transport, training: Training) -> list[Step]:
    """Run the steps of ``training`` as the engine would."""
    compressor = new_compressor(transport, training)
    generator = torch.Generator().manual_seed(1000 * training.seed + transport.rank)
    steps = []
    for number, undone in enumerate(training.undone):
        compressor.step = number
        gradients = [
            _gradient(numel, generator).to(transport.device)
            for numel in training.numels
        ]
        before = _residual(compressor)
        _add(compressor, gradients, generator)
        sent = _remember_messages(compressor)
        contributed = COLLECTIVES[training.collective].aggregate(transport, compressor)
        applied = written(compressor)
        if undone:
            compressor.undo()
            applied.zero_()
        steps.append(
            Step(
                torch.cat(gradients).cpu(),
                applied.cpu(),
                before.cpu(),
                _residual(compressor).cpu(),
                contributed,
                message_nbytes(sent[-1]),
                len(sent[-1]),
            )
        )
    return steps


def dies(transport: Transport) -> None:
    """End the last rank's process without a word; the others return."""
    if transport.rank == transport.world_size - 1:
        os._exit(1)


def bucket_steps(
    transport: Transport,
    spec: Any,
    gradients: Sequence[Sequence[Sequence[torch.Tensor]]],
    momentum: float | None = None,
) -> tuple[list[torch.Tensor], Compressor]:
    """Return what is applied in each step, and this rank's compressor.

    Args:
        transport: over the ranks.
        spec: of the bucket, which travels by its default collective.
        gradients: step by step and rank by rank, the tensors of the bucket.
        momentum: that is corrected; None: none is.
    """
    slots = [Slot(f"t{i}", len(tensor)) for i, tensor in enumerate(gradients[0][0])]
    context = Context(
        transport.world_size,
        transport.rank,
        transport.device,
        momentum_of=None if momentum is None else lambda _: Momentum(momentum),
    )
    bucket = build(spec, spec.default_collective(), slots, context)
    applied = []
    for number, of_ranks in enumerate(gradients):
        bucket.step = number
        for index, tensor in enumerate(of_ranks[transport.rank]):
            bucket.add(index, tensor.to(transport.device))
        COLLECTIVES[bucket.collective].aggregate(transport, bucket)
        applied.append(written(bucket).cpu())
    return applied, bucket


def mean_of_repetitions(
    transport: Transport,
    training: Training,
    gradients: Sequence[torch.Tensor],
    times: int,
) -> torch.Tensor:
    """Return the mean, over the first ``times`` steps, of what is applied.

    Args:
        transport: over the ranks.
        training: the bucket; its ``undone`` is not used.
        gradients: this step after step is the gradient of rank r [numel].
        times: how often.
    """
    compressor = new_compressor(transport, training)
    total = torch.zeros_like(gradients[0], dtype=torch.float64)
    for number in range(times):
        compressor.step = number
        parts = torch.split(gradients[transport.rank], list(training.numels))
        for index, part in enumerate(parts):
            compressor.add(index, part.to(transport.device))
        COLLECTIVES[training.collective].aggregate(transport, compressor)
        total += written(compressor).cpu()
    return total / times


def new_compressor(transport: Transport, training: Training) -> Compressor:
    """Return this rank's compressor of the bucket."""
    slots = [
        Slot(f"t{i}", math.prod(shape), shape)
        for i, shape in enumerate(training.shapes)
    ]
    context = Context(
        transport.world_size,
        transport.rank,
        transport.device,
        seed=1000 * training.seed + transport.rank,
    )
    return build(training.spec, training.collective, slots, context)


def written(compressor: Compressor) -> torch.Tensor:
    """Return the mean over ranks of the whole bucket."""
    parts = [
        torch.full((slot.numel,), torch.nan, device=compressor.context.device)
        for slot in compressor.slots
    ]
    for index, part in enumerate(parts):
        compressor.write(index, part)
    return torch.cat(parts)


def _gradient(numel: int, generator: torch.Generator) -> torch.Tensor:
    """Return numbers of several magnitudes, and zeros."""
    scales = torch.tensor([0.0, 1e-3, 0.3, 1.0, 10.0])
    scale = scales[torch.randint(len(scales), (numel,), generator=generator)]
    return scale * torch.randn(numel, generator=generator)


def _add(
    compressor: Compressor,
    gradients: Sequence[torch.Tensor],
    generator: torch.Generator,
) -> None:
    for index, gradient in enumerate(gradients):
        spread = torch.rand(gradient.numel(), generator=generator)
        second_moment = gradient.square() * spread.to(gradient.device)
        if not compressor.needs_second_moments:
            second_moment = None
        compressor.add(index, gradient, second_moment)


def _residual(compressor: Compressor) -> torch.Tensor:
    numel = sum(slot.numel for slot in compressor.slots)
    parts = compressor.state.get(RESIDUAL, [torch.zeros(numel)])
    return torch.cat(list(parts)).clone()


def _remember_messages(compressor: Compressor) -> list[Message]:
    """Return a list that the next message is added to, as it was encoded."""
    messages: list[Message] = []
    encode = type(compressor).encode

    def remembering() -> Message:
        message = encode(compressor)
        messages.append(tuple(tensor.clone() for tensor in message))
        return message

    compressor.encode = remembering  # type: ignore[method-assign]
    return messages
