"""Measure what each compressor costs on this device, over sizes and densities.

Each point is one bucket of standard normal gradients, and the cost of one of its
tensors: ``compress_s`` is add and before it, unless the method is linear, the engine's
look for inf and NaN; ``encode_s`` is agree and encode; ``decompress_s`` is decode of
one rank's message and write, ``another_s`` what each further message adds where they
are gathered; ``momentum_s`` what adding takes longer with momentum correction,
``momentum_encode_s`` what encoding does. Medians, after a warm-up. All ranks measure at
once, since in training they compress at once and may share cores (``laps``).

In training a gradient comes fresh from backward, but a whole model has passed through
the caches since its residual was last touched. So small tensors are measured as many of
a bucket, which share a gradient and have each its own state and mean. What is still
missing of the training around it is added by ``in_place`` and ``sent``.

Tensors are square matrices of about the size that is noted. PowerSGD is measured at the
rank of its spec's example. What encoding and decoding take of a bucket whatever its
tensors, ``bucket_encode_s`` and ``bucket_decode_s``, is what lies between one small
tensor and many of them, carried on to none; the other figures are without it.

Methods whose message length depends on the data get thresholds at which normal
gradients give the wanted density; their state is emptied before every repetition, so
that it stays the wanted one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch

from comm_plan.collectives.collective import Codings
from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.compressors import build
from comm_plan.compressors.base import (
    VELOCITY,
    Compressor,
    Context,
    Message,
    Slot,
)
from comm_plan.compressors.momentum import Momentum
from comm_plan.compressors.words import MAX_NUMEL
from comm_plan.errors import InputError
from comm_plan.plans import CompressionCost
from comm_plan.plans.compression import KINDS, spec_class
from comm_plan.plans.compression.words import Words
from comm_plan.plans.document import MAX_INTEGER
from comm_plan.profiler.environment import usable_device
from comm_plan.profiler.laps import Laps
from comm_plan.profiler.timings import PassProgress
from comm_plan.runtime.bucket import TOGETHER_NUMEL
from comm_plan.transports.base import Transport
from comm_plan.transports.local import LocalTransport

DENSITIES = (0.1, 0.01, 0.001)
MOST_SENT = 0.5
"""A density that is measured too where the data decides it, and so may be high."""

SMALLEST_NUMEL = 2**10
GROWTH = 8
"""Sizes grow by this factor; costs in between are interpolated."""

BUCKET_NUMEL, MOST_TENSORS = 2**21, 16
"""A point's tensors have together so many elements, if that many tensors suffice."""

FURTHER = 4
"""So many messages more are decoded to see what each adds."""

REPETITIONS = (5, 9)
"""Fewest, and most where they are short."""

LONG_ENOUGH_S = 0.1
"""A point's short repetitions go on for so long."""

_WARMUP = 1
_MOMENTUM = 0.9


def compression_costs(
    largest_numel: int,
    *,
    kinds: Sequence[str] = tuple(KINDS),
    densities: Sequence[float] | None = None,
    device: str = "cpu",
    transport: Transport | None = None,
    progress: PassProgress | None = None,
) -> dict[str, tuple[CompressionCost, ...]]:
    """Return the ``compression`` of a profile.

    Args:
        largest_numel: elements of the largest tensor.
        kinds: which compressors to measure.
        densities: k / numel, for those that have a density; None: :data:`DENSITIES`,
            and :data:`MOST_SENT` where the data decides it.
        device: where.
        transport: on several ranks: every rank calls this, and all get the same costs.
        progress: called with the number of points done and of all.

    Raises:
        InputError: an unknown compressor, a density outside (0, 1], or no such device.
    """
    target = usable_device(device)
    points = [
        (kind, density, numel)
        for kind in kinds
        for density in _densities_of(kind, densities)
        for numel in sizes(min(largest_numel, _most(kind)))
    ]
    ranks = transport or LocalTransport(target)
    laps = Laps(ranks)
    costs: dict[str, list[CompressionCost]] = {kind: [] for kind in kinds}
    bucket_s: dict[tuple[str, float], tuple[float, float]] = {}
    for done, (kind, density, numel) in enumerate(points, start=1):
        ranks.barrier()
        method = kind, density
        if method not in bucket_s:
            bucket_s[method] = _of_bucket(kind, density, target, laps)
        costs[kind].append(
            _measured(kind, density, numel, target, bucket_s[method], laps)
        )
        if progress is not None:
            progress(done, len(points))
    longer = laps.of_slowest
    return {
        kind: tuple(cost.longer(compress=longer, coding=longer) for cost in of_kind)
        for kind, of_kind in costs.items()
    }


def coded_by_default(kind: str, world_size: int) -> Codings:
    """Return how often ``kind`` encodes and decodes by its default collective."""
    collective = spec_class(kind).default_collective()
    return COLLECTIVES[collective].coded(world_size)


def sizes(largest_numel: int) -> list[int]:
    """Return the sizes to measure: growing steps, and the largest itself."""
    steps = []
    numel = SMALLEST_NUMEL
    while numel < largest_numel:
        steps.append(numel)
        numel *= GROWTH
    return [*steps, largest_numel]


def _most(kind: str) -> int:
    """Return how many elements a bucket of ``kind`` may have."""
    return MAX_NUMEL if issubclass(spec_class(kind), Words) else MAX_INTEGER


def _densities_of(kind: str, densities: Sequence[float] | None) -> Sequence[float]:
    if not spec_class(kind).sparse:
        return (1.0,)
    if densities is None:
        decided = issubclass(spec_class(kind), Words)
        return (MOST_SENT, *DENSITIES) if decided else DENSITIES
    for density in densities:
        if not 0 < density <= 1:
            raise InputError(f"density is {density}: give one above 0 and up to 1")
    return densities


def _of_bucket(
    kind: str, density: float, device: torch.device, laps: Laps
) -> tuple[float, float]:
    """Return what encoding and decoding a bucket take whatever its tensors."""
    of_one, of_many = (
        _seconds(_bucket(kind, density, SMALLEST_NUMEL, tensors, device), density, laps)
        for tensors in (1, MOST_TENSORS)
    )
    encode_s, decode_s = (
        max(0.0, of_one[step] - of_many[step]) * MOST_TENSORS / (MOST_TENSORS - 1)
        for step in (1, 2)
    )
    return min(encode_s, of_one[1]), min(decode_s, of_one[2])


def _bucket(
    kind: str,
    density: float,
    numel: int,
    tensors: int,
    device: torch.device,
    momentum: Momentum | None = None,
) -> Compressor:
    """Return the compressor of a bucket of so many tensors of about ``numel``."""
    spec = spec_class(kind).at_density(density)
    rows = math.isqrt(numel)
    shape = rows, numel // rows
    slots = [Slot(f"tensor{i}", math.prod(shape), shape) for i in range(tensors)]
    momentum_of = None if momentum is None else lambda name: momentum
    context = Context(world_size=1, rank=0, device=device, momentum_of=momentum_of)
    return build(spec, spec.default_collective(), slots, context)


def _measured(
    kind: str,
    density: float,
    numel: int,
    device: torch.device,
    bucket_s: tuple[float, float],
    laps: Laps,
) -> CompressionCost:
    tensors = max(1, min(MOST_TENSORS, BUCKET_NUMEL // numel))
    plain = _bucket(kind, density, numel, tensors, device)
    seconds = _seconds(plain, density, laps)
    momentum_s = momentum_encode_s = 0.0
    corrected = _bucket(kind, density, numel, tensors, device, Momentum(_MOMENTUM))
    if VELOCITY in corrected.state:
        add_s, masked_s, *_ = _seconds(corrected, density, laps)
        momentum_s = max(0.0, add_s - seconds[0])
        momentum_encode_s = max(0.0, masked_s - seconds[1])
    compress_s, encode_s, decompress_s, another_s = seconds
    bucket_encode_s, bucket_decode_s = bucket_s
    return CompressionCost(
        numel=numel,
        density=density,
        compress_s=compress_s,
        encode_s=max(0.0, encode_s - bucket_encode_s / tensors),
        decompress_s=max(0.0, decompress_s - bucket_decode_s / tensors),
        another_s=another_s if _is_gathered(plain) else None,
        momentum_s=momentum_s,
        momentum_encode_s=momentum_encode_s,
        bucket_encode_s=bucket_encode_s,
        bucket_decode_s=bucket_decode_s,
    )


def _is_gathered(compressor: Compressor) -> bool:
    """Return whether every rank's message comes back."""
    return COLLECTIVES[compressor.collective].messages(FURTHER + 1) > 1


def _seconds(
    compressor: Compressor, density: float, laps: Laps
) -> tuple[float, float, float, float]:
    """Return what adding, encoding, decoding one and another message take a tensor."""
    device = compressor.context.device
    tensors, numel = len(compressor.slots), compressor.slots[0].numel
    gradient = torch.randn(numel, dtype=torch.float32, device=device)
    moment = compressor.spec.second_moment_at(density)
    second_moment = None if moment is None else torch.full_like(gradient, moment)
    means = gradient.new_empty(tensors, numel)
    own: list[tuple[float, float, float, float]] = []
    fewest, most = (_WARMUP + count for count in REPETITIONS)
    until_s = _now(device) + LONG_ENOUGH_S
    while len(own) < fewest or (len(own) < most and _now(device) <= until_s):
        _empty(compressor)
        compressor.step = len(own)
        begin_s = _now(device)
        _add(compressor, gradient, second_moment)
        added_s = _now(device)
        compressor.agree(LocalTransport(device))
        message = compressor.encode()
        encoded_s = _now(device)
        _hand_out(compressor, [message], means)
        first_s = _now(device)
        if _is_gathered(compressor):
            _hand_out(compressor, [message] * (FURTHER + 1), means)
        both_s = _now(device) - encoded_s
        decoded_s = first_s - encoded_s
        own.append((added_s - begin_s, encoded_s - added_s, decoded_s, both_s))
    add_s, encode_s, decode_s, both_s = (
        of_all / tensors for of_all in laps.together(own[_WARMUP:])
    )
    return add_s, encode_s, decode_s, max(0.0, (both_s - 2 * decode_s) / FURTHER)


def _add(
    compressor: Compressor, gradient: torch.Tensor, second_moment: torch.Tensor | None
) -> None:
    """Add ``gradient`` for every tensor, as the engine does."""
    tensors = len(compressor.slots)
    if compressor.takes_together and tensors * gradient.numel() <= TOGETHER_NUMEL:
        gradients = gradient.repeat(tensors)
        if not compressor.carries_nonfinite:
            gradients.sum()
        compressor.add_together(gradients)
        return
    for index in range(tensors):
        if not compressor.carries_nonfinite:
            gradient.sum()
        compressor.add(index, gradient, second_moment)


def _hand_out(
    compressor: Compressor, messages: Sequence[Message], means: torch.Tensor
) -> None:
    """Decode ``messages`` and write their means to ``means`` [tensors, numel]."""
    compressor.decode(messages)
    for index, mean in enumerate(means):
        place = compressor.view(index)
        compressor.write(index, mean if place is None else place)


def _empty(compressor: Compressor) -> None:
    for tensors in compressor.state.values():
        for tensor in tensors:
            tensor.zero_()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
