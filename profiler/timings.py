"""Runs training iterations and notes when each gradient gets ready.

A hook on every trainable parameter marks a moment as soon as its gradient is
accumulated. Hooks cost nothing measurable, profilers distort.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from comm_plan.arrays import FloatArray
from comm_plan.plans.parameters import trainable
from comm_plan.plans.profile import SecondMoments
from comm_plan.profiler.stopwatch import Stopwatch, stopwatch
from comm_plan.runtime.second_moments.choice import survey
from comm_plan.transports.base import Transport
from comm_plan.workloads.base import endless
from comm_plan.workloads.modes import training

PassProgress = Callable[[int, int], None]

FORWARD, BACKWARD, MEETING, UPDATE, DONE = range(5)
"""Moments at which a part of the iteration starts; those of the tensors follow."""
FIRST_TENSOR = 5


class Measurable(Protocol):
    """What is measured: the parts of a workload that the profiler uses."""

    @property
    def name(self) -> str:
        """What the profile calls the model."""

    @property
    def model(self) -> nn.Module:
        """The model."""

    @property
    def batch_size(self) -> int:
        """Samples in a batch of one rank."""

    @property
    def optimizer(self) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
        """Makes the optimizer from the model's parameters."""

    @property
    def batches(self) -> Callable[[int, int, int, int], Iterator[Any]]:
        """Yields the batches of a rank, world size, epoch and seed."""

    @property
    def loss(self) -> Callable[[nn.Module, Any], torch.Tensor]:
        """Returns the loss of a model on a batch."""


@dataclass(frozen=True)
class Timings:
    """Raw times of some iterations; entry i of each belongs to iteration i.

    Attributes:
        forward_s: [iterations].
        backward_s: [iterations], from the end of forward to the end of backward.
        update_s: [iterations], the optimizer's step and its ``zero_grad``.
        total_s: [iterations], all of these, and what lay between.
        host_backward_s: [iterations], how long the host was busy with backward; on
            CUDA it has then only launched it.
        ready_s: [iterations, tensors], from the start of backward, 0 where a gradient
            was complete before; NaN where a tensor got none.
        orders: the tensors in the order in which their hooks ran.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    update_s: FloatArray
    total_s: FloatArray
    host_backward_s: FloatArray
    ready_s: FloatArray
    orders: tuple[tuple[int, ...], ...]

    @property
    def waited_for_s(self) -> FloatArray:
        """``ready_s``, and the end of backward where others had a gradient.

        So long an engine waits for who gets one in some iterations only.
        """
        absent = np.isnan(self.ready_s)
        sometimes = absent & ~absent.all(axis=0)
        return np.where(sometimes, self.backward_s[:, None], self.ready_s)


class Trial:
    """A workload on a device, ready to run iterations.

    The iterations train the model.

    Args:
        workload: what to run.
        ranks: on whose device, and which rank's batches.
        meet: is called after each backward, and waits for the other ranks.
    """

    def __init__(
        self,
        workload: Measurable,
        ranks: Transport,
        meet: Callable[[], None] = lambda: None,
    ) -> None:
        self._model = training(workload.model.to(ranks.device))
        self._loss = workload.loss
        self._device = ranks.device
        self._meet = meet
        self.parameters = trainable(self._model)
        self.optimizer = workload.optimizer(self._model.parameters())
        self._batches = endless(workload.batches, ranks.rank, ranks.world_size)

    def run(
        self, iterations: int, warmup: int, progress: PassProgress | None = None
    ) -> Timings:
        """Return the times of ``iterations`` iterations after ``warmup`` others.

        Args:
            iterations: how many to keep.
            warmup: how many to run before and forget.
            progress: called with the number of iterations done and of all.
        """
        total = warmup + iterations
        watch = stopwatch(self._device, FIRST_TENSOR + len(self.parameters))
        fired: list[int] = []
        rows, orders, host_s = [], [], []
        with ExitStack() as hooks:
            self._hook(watch, fired, hooks)
            for done in range(1, total + 1):
                host_s.append(self._iterate(watch))
                rows.append(watch.read())
                orders.append(tuple(fired))
                fired.clear()
                if progress is not None:
                    progress(done, total)
        return timings_of(
            np.array(rows[warmup:]), np.array(host_s[warmup:]), tuple(orders[warmup:])
        )

    def iterate(self) -> None:
        """Run one iteration, untimed."""
        self._iterate(stopwatch(self._device, FIRST_TENSOR))

    def look(self) -> tuple[SecondMoments, dict[str, int]]:
        """Return what one more iteration shows.

        How second moments can be had, and :func:`sparse_rows`.
        """
        self.optimizer.zero_grad()
        moments = survey(self._model, self._loss, next(self._batches))
        rows = sparse_rows(self.parameters)
        self.optimizer.zero_grad()
        return moments, rows

    def _hook(self, watch: Stopwatch, fired: list[int], hooks: ExitStack) -> None:
        for index, parameter in enumerate(self.parameters.values()):

            def ready(_: torch.Tensor, index: int = index) -> None:
                watch.mark(FIRST_TENSOR + index)
                fired.append(index)

            handle = parameter.register_post_accumulate_grad_hook(ready)
            hooks.callback(handle.remove)

    def _iterate(self, watch: Stopwatch) -> float:
        """Run one iteration and return the host's time in backward."""
        batch = next(self._batches)
        watch.mark(FORWARD)
        loss = self._loss(self._model, batch)
        watch.mark(BACKWARD)
        begin_s = time.perf_counter()
        loss.backward()
        host_s = time.perf_counter() - begin_s
        watch.mark(MEETING)
        self._meet()
        watch.mark(UPDATE)
        self.optimizer.step()
        self.optimizer.zero_grad()
        watch.mark(DONE)
        return host_s


def joined(timings: Sequence[Timings]) -> Timings:
    """Return the iterations of all ``timings``, which are of the same tensors."""

    def column(name: str) -> FloatArray:
        return np.concatenate([getattr(each, name) for each in timings])

    return Timings(
        forward_s=column("forward_s"),
        backward_s=column("backward_s"),
        update_s=column("update_s"),
        total_s=column("total_s"),
        host_backward_s=column("host_backward_s"),
        ready_s=column("ready_s"),
        orders=tuple(chain.from_iterable(each.orders for each in timings)),
    )


def sparse_rows(parameters: Mapping[str, nn.Parameter]) -> dict[str, int]:
    """Return how many rows there are in each gradient that is sparse."""
    return {
        name: parameter.grad.coalesce().values().shape[0]
        for name, parameter in parameters.items()
        if parameter.grad is not None and parameter.grad.is_sparse
    }


def timings_of(
    moments: FloatArray,
    host_backward_s: FloatArray,
    orders: tuple[tuple[int, ...], ...],
) -> Timings:
    """Return the times between the moments of each iteration.

    Args:
        moments: [iterations, FIRST_TENSOR + tensors] when what happened.
        host_backward_s: as in :class:`Timings`.
        orders: likewise.
    """
    spans = np.diff(moments[:, :FIRST_TENSOR], axis=1)
    return Timings(
        forward_s=spans[:, FORWARD],
        backward_s=spans[:, BACKWARD],
        update_s=spans[:, UPDATE],
        total_s=moments[:, DONE] - moments[:, FORWARD],
        host_backward_s=host_backward_s,
        ready_s=np.maximum(moments[:, FIRST_TENSOR:] - moments[:, [BACKWARD]], 0.0),
        orders=orders,
    )
