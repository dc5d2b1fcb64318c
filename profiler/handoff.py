"""How long the communication thread takes to wake up while the model computes.

A bucket that is complete is handed to a thread that sleeps. It gets going when the
operating system gives it a core, which the computation of this rank, and of others on
the same host, would rather keep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import nn

IDLE_S = 1e-3
"""A thread that had something to do so recently may not have gone to sleep yet."""


def handoff_s(
    parameters: dict[str, nn.Parameter], iterate: Callable[[], object], iterations: int
) -> float:
    """Return the median seconds between a gradient and a sleeping thread that takes it.

    Args:
        parameters: whose gradients are handed over.
        iterate: runs one iteration.
        iterations: how many to run.
    """
    with handing_over(parameters.values()) as lags_s:
        for _ in range(iterations):
            iterate()
    return median_s(lags_s)


def median_s(lags_s: Sequence[float]) -> float:
    """Return the median of what was seen, 0 if nothing was."""
    return float(np.median(lags_s)) if lags_s else 0.0


@contextmanager
def handing_over(parameters: Iterable[nn.Parameter]) -> Iterator[list[float]]:
    """Hand gradients to a sleeping thread for the length of the block.

    Yields:
        The seconds from each gradient until the thread took it.
    """
    lags_s: list[float] = []
    handed_s = 0.0

    def take(at_s: float) -> None:
        lags_s.append(time.perf_counter() - at_s)

    with ThreadPoolExecutor(1) as thread, ExitStack() as hooks:

        def hand_over(_: torch.Tensor) -> None:
            nonlocal handed_s
            before_s, handed_s = handed_s, time.perf_counter()
            if handed_s - before_s > IDLE_S:
                thread.submit(take, handed_s)

        for parameter in (p for p in parameters if p.requires_grad):
            handle = parameter.register_post_accumulate_grad_hook(hand_over)
            hooks.callback(handle.remove)
        yield lags_s
