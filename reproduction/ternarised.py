"""TernGrad over a training: what its figures 2 and 4 show, from real gradients.

Ranks are simulated in one process: each step every rank's gradient of its own batch
goes through the real compressor, and the mean of what comes out is the update.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from comm_plan.compressors.base import Context, Slot
from comm_plan.compressors.terngrad import TernGradCompressor
from comm_plan.plans.compression import TernGrad
from comm_plan.transports.base import Reduction
from comm_plan.transports.local import LocalTransport
from comm_plan.workloads import load
from comm_plan.workloads.base import endless

LAYER = "fc1.weight"
"""Whose gradients are looked at: the first fully connected layer's, as in the paper."""

MOMENTS = 5
BINS = 10


@dataclass(frozen=True)
class Ternarised:
    """One layer's gradients at one moment of a training, rank 0's unless it is said.

    Attributes:
        step: how many steps were done.
        loss: rank 0's.
        beyond: share of elements beyond the bound, which are clipped.
        length: of the clipped gradient, relative to the original's.
        angle_degrees: between the two.
        zeros: share of elements that become 0, of the applied scaler, which is that of
            the rank with the largest.
        mean_angle_degrees: between the applied mean over ranks and the true one.
        histogram: [BINS] shares of the original's elements, by magnitude, in tenths of
            the bound; the last holds all beyond.
    """

    step: int
    loss: float
    beyond: float
    length: float
    angle_degrees: float
    zeros: float
    mean_angle_degrees: float
    histogram: list[float]


def train_ternarised(ranks: int, steps: int) -> list[Ternarised]:
    """Train ``digits`` with ternary gradients; return what was seen on the way."""
    workload = load("digits")
    model = workload.model
    torch.manual_seed(0)
    optimizer = workload.optimizer(model.parameters())
    names = [name for name, _ in model.named_parameters()]
    slots = [Slot(name, p.numel()) for name, p in model.named_parameters()]
    compressors = [
        TernGradCompressor(
            TernGrad(), "allgather", slots, Context(ranks, r, torch.device("cpu"), r)
        )
        for r in range(ranks)
    ]
    data = [endless(workload.batches, rank, ranks) for rank in range(ranks)]
    seen = []
    for step in range(steps):
        gradients, losses = [], []
        for batches in data:
            optimizer.zero_grad()
            loss = workload.loss(model, next(batches))
            loss.backward()
            losses.append(loss.item())
            gradients.append(_gradients(model))
        applied = exchange(compressors, gradients, step)
        for parameter, mean in zip(model.parameters(), applied, strict=True):
            parameter.grad = mean.view_as(parameter)
        if step % (steps // MOMENTS) == 0:
            index = names.index(LAYER)
            layer = [of_rank[index] for of_rank in gradients]
            seen.append(_seen(step, losses[0], layer, applied[index]))
        optimizer.step()
    return seen


class _Together(LocalTransport):
    """Ranks of one process: each gives its numbers, then each takes the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.all_have_given = False
        self._given: list[torch.Tensor] = []

    def all_reduce(self, tensor: torch.Tensor, operation: Reduction = "sum") -> None:
        """Remember ``tensor``, or replace it by the largest of what was given."""
        if self.all_have_given:
            tensor.copy_(torch.stack(self._given).amax(0))
        else:
            self._given.append(tensor.clone())


def exchange(
    compressors: Sequence[TernGradCompressor],
    gradients: Sequence[Sequence[torch.Tensor]],
    step: int,
) -> list[torch.Tensor]:
    """Return the mean of all ranks' ternary gradients, tensor by tensor."""
    ranks = _Together()
    for compressor, mine in zip(compressors, gradients, strict=True):
        compressor.step = step
        for index, gradient in enumerate(mine):
            compressor.add(index, gradient)
        compressor.agree(ranks)
    ranks.all_have_given = True
    messages = []
    for compressor in compressors:
        compressor.agree(ranks)
        messages.append(tuple(part.clone() for part in compressor.encode()))
    compressors[0].decode(messages)
    means = [torch.empty_like(gradient) for gradient in gradients[0]]
    for index, mean in enumerate(means):
        compressors[0].write(index, mean)
    return means


def _seen(
    step: int, loss: float, layer: Sequence[torch.Tensor], applied: torch.Tensor
) -> Ternarised:
    original = layer[0]
    bound, clipped = _clipped(original)
    scaler = max(float(_clipped(of_rank)[1].abs().max()) for of_rank in layer)
    bins = torch.histc(
        original.abs().clamp(max=float(bound)), bins=BINS, min=0.0, max=float(bound)
    )
    return Ternarised(
        step=step,
        loss=loss,
        beyond=float((original.abs() > bound).float().mean()),
        length=float(clipped.norm() / original.norm()),
        angle_degrees=_angle_degrees(clipped, original),
        zeros=1 - float(clipped.abs().mean()) / scaler,
        mean_angle_degrees=_angle_degrees(applied, torch.stack(list(layer)).mean(0)),
        histogram=(bins / len(original)).tolist(),
    )


def _clipped(gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bound, and the gradient within it."""
    bound = TernGrad().clip * gradient.std(correction=0)
    return bound, gradient.clamp(-bound, bound)


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.flatten().clone() for p in model.parameters() if p.grad is not None]


def _angle_degrees(one: torch.Tensor, other: torch.Tensor) -> float:
    cosine = torch.nn.functional.cosine_similarity(one, other, dim=0)
    return math.degrees(math.acos(min(1.0, float(cosine))))
