"""When what happens in a step: moments on the threads that make it happen.

On the CPU a moment is the host's clock. On CUDA the host runs ahead of the device, so a
moment is an event in the current stream of whoever marks it, and is read later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import torch

from comm_plan.plans import BucketTiming, Timing

Moment: TypeAlias = "float | torch.cuda.Event"


def clock(device: torch.device) -> Callable[[], Moment]:
    """Return what tells now, as ``device`` sees it."""
    return partial(_event, device) if device.type == "cuda" else time.perf_counter


def _event(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


class Moments:
    """The moments of one step, from its first forward on.

    Of a round of local steps, what lies between an update and the next forward, such as
    the loading of data, is left out, as it is between steps that exchange.

    Args:
        device: whose time counts.
        buckets: how many there are.

    Attributes:
        now: tells this moment.
        begun: forward begins.
        backward: the first gradient arrives.
        backward_end: the last one did.
        ready: [B] a bucket is complete, and compressed as far as backward does that.
        start: [B] the communication thread takes it.
        finish: [B] its means are in place.
    """

    def __init__(self, device: torch.device, buckets: int) -> None:
        self.now = clock(device)
        self.begun: Moment | None = None
        self.backward: Moment | None = None
        self.backward_end: Moment | None = None
        self.ready: list[Moment | None] = [None] * buckets
        self.start: list[Moment | None] = [None] * buckets
        self.finish: list[Moment | None] = [None] * buckets
        self._updated: Moment | None = None
        self._pauses: list[tuple[Moment, Moment]] = []

    def pause(self) -> None:
        """Note that a local step has ended."""
        if self.begun is not None:
            self._updated = self.now()

    def resume(self) -> None:
        """Note that the round goes on: by the next forward, or by its exchange."""
        if self._updated is not None:
            self._pauses.append((self._updated, self.now()))
            self._updated = None

    def seconds(self) -> StepSeconds | None:
        """Return the seconds from ``begun`` to each; None if one was never reached."""
        marks = [self.backward, self.backward_end, *self.ready]
        marks += [*self.start, *self.finish]
        if self.begun is None:
            return None
        since = self._since(self.begun, marks)
        if since is None:
            return None
        return since - sum(_seconds(*pause) for pause in self._pauses)

    def exposed_s(self) -> float | None:
        """Return how much later than backward the last bucket finished; 0: not later.

        None if one never did. Forward may be unknown.
        """
        if self.backward_end is None:
            return None
        later_s = self._since(self.backward_end, self.finish)
        return None if later_s is None else max(0.0, float(later_s.max()))

    def busy_s(self) -> Row | None:
        """Return how long each bucket kept the communication thread, [B].

        None if one never finished. Forward may be unknown.
        """
        if self.start[0] is None:
            return None
        spans = self._since(self.start[0], [*self.start, *self.finish])
        if spans is None:
            return None
        start, finish = spans.reshape(2, -1)
        return finish - start

    def _since(self, start: Moment, marks: Sequence[Moment | None]) -> Row | None:
        """Return the seconds from ``start`` to each; None if one was never reached."""
        if any(mark is None for mark in marks):
            return None
        for mark in (start, *marks):
            if isinstance(mark, torch.cuda.Event):
                mark.synchronize()
        return np.array([_seconds(start, mark) for mark in marks if mark is not None])


Row: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float64]]"

StepSeconds: TypeAlias = Row
"""[2 + 3 B]: backward, backward's end, then ready, start and finish of the buckets."""


def _seconds(start: Moment, end: Moment) -> float:
    if isinstance(start, float):
        assert isinstance(end, float)
        return end - start
    assert not isinstance(end, float)
    return float(start.elapsed_time(end)) / 1e3


def median_timing(steps: Sequence[StepSeconds]) -> Timing | None:
    """Return the median of every moment over ``steps``; None of none."""
    if not steps:
        return None
    medians = np.median(np.stack(steps), axis=0)
    backward_start_s, compute_end_s = medians[:2].tolist()
    ready, start, finish = medians[2:].reshape(3, -1).tolist()
    return Timing(
        backward_start_s=backward_start_s,
        compute_end_s=compute_end_s,
        buckets=tuple(
            BucketTiming(ready_s=r, start_s=s, finish_s=f)
            for r, s, f in zip(ready, start, finish, strict=True)
        ),
    )
