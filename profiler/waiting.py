"""What an iteration costs because the ranks wait for each other.

Ranks that have waited for a collective wake up one after the other, begin the next
iteration so, with cold caches, and disturb each other on the cores that they share. An
iteration of all of them takes longer than the computation of one and the collective
together. So while it is profiled, every iteration ends its backward with an all-reduce,
as in training on the thread that waits for it, and what its whole length is more than
its parts is stated apart. Buffers follow rank 0 there, as in training: that is in it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from comm_plan.plans.parameters import numel_of, trainable
from comm_plan.profiler.timings import Timings
from comm_plan.runtime.buffers import Buffers
from comm_plan.transports.base import Transport
from comm_plan.transports.elapsed import elapsed_s

NUMEL = 2**14
"""Elements of that all-reduce at most: beside a longer one ranks wait longer, by less
than 2 % of it, and plans that send little do not."""

REPETITIONS = 10
"""Of the all-reduce alone."""


class Rendezvous:
    """An all-reduce in which the ranks meet, and buffers follow rank 0.

    Args:
        ranks: the ranks.
        model: what they train.
    """

    def __init__(self, ranks: Transport, model: nn.Module) -> None:
        self._ranks = ranks
        numel = min(NUMEL, numel_of(trainable(model)))
        self._buffer = torch.zeros(numel, dtype=torch.float32, device=ranks.device)
        self._buffers = Buffers(model, ranks)

    def meet(self) -> None:
        """Wait for all ranks, and take rank 0's buffers."""
        self._all_reduce()
        self._buffers.touched = True
        self._buffers.align(joined=False)

    def _all_reduce(self) -> None:
        self._ranks.all_reduce(self._buffer)

    def alone_s(self) -> float:
        """Return the median seconds of the all-reduce when nothing else is going on.

        From when the last rank comes, on the slowest rank; a collective call.
        """
        own = [elapsed_s(self._ranks, self._all_reduce) for _ in range(REPETITIONS)]
        slowest = np.max(self._ranks.gather_objects(own), axis=0)
        return float(np.median(slowest))


def waiting_s(timings: Timings, meeting_s: float) -> float:
    """Return what an iteration takes beyond its parts.

    Args:
        timings: of all ranks together, whose iterations had a meeting.
        meeting_s: what the all-reduce takes alone.
    """
    parts = (timings.forward_s, timings.backward_s, timings.update_s)
    alone_s = sum(float(np.median(part)) for part in parts) + meeting_s
    return max(0.0, float(np.median(timings.total_s)) - alone_s)
