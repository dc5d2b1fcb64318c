"""Marks the moments of one iteration, by the host's clock or by the device's.

On CUDA the host runs ahead of the device, and asking the device for the time stops
both. So each moment has an event of its own, made beforehand; marking it only puts it
into the stream, and one synchronise at the end of the iteration reads them all.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod

import torch


class Stopwatch(ABC):
    """Numbered moments; moment 0 is the start."""

    @abstractmethod
    def mark(self, moment: int) -> None:
        """Say that ``moment`` is now."""

    @abstractmethod
    def forget(self, moment: int) -> None:
        """Take back that ``moment`` has been."""

    @abstractmethod
    def read(self) -> list[float]:
        """Return the seconds from moment 0 to each, NaN if unmarked, and reset."""


class HostStopwatch(Stopwatch):
    """The host's monotonic clock, for devices that compute as they are called."""

    def __init__(self, moments: int) -> None:
        """Make room for so many moments."""
        self._at_s = [math.nan] * moments

    def mark(self, moment: int) -> None:
        """Note the time."""
        self._at_s[moment] = time.perf_counter()

    def forget(self, moment: int) -> None:
        """Note nothing instead."""
        self._at_s[moment] = math.nan

    def read(self) -> list[float]:
        """Return what was noted."""
        seconds = [at_s - self._at_s[0] for at_s in self._at_s]
        self._at_s = [math.nan] * len(self._at_s)
        return seconds


class CudaStopwatch(Stopwatch):
    """Events in the device's current stream of whoever marks them."""

    def __init__(self, moments: int, device: torch.device) -> None:
        """Make all events now: making one takes longer than recording it."""
        self._device = device
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(moments)]
        self._marked: set[int] = set()

    def mark(self, moment: int) -> None:
        """Record the moment's event."""
        self._events[moment].record(torch.cuda.current_stream(self._device))
        self._marked.add(moment)

    def forget(self, moment: int) -> None:
        """Do not read its event."""
        self._marked.discard(moment)

    def read(self) -> list[float]:
        """Wait for the device and return what its events say."""
        torch.cuda.synchronize(self._device)
        start = self._events[0]
        seconds = [
            start.elapsed_time(event) / 1e3 if {0, moment} <= self._marked else math.nan
            for moment, event in enumerate(self._events)
        ]
        self._marked.clear()
        return seconds


def stopwatch(device: torch.device, moments: int) -> Stopwatch:
    """Return the stopwatch that suits ``device``."""
    if device.type == "cuda":
        return CudaStopwatch(moments, device)
    return HostStopwatch(moments)
