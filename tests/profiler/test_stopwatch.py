"""Moments by the clock of a device, whose events must be recorded to be read."""

import math

import pytest
import torch

from comm_plan.profiler.stopwatch import CudaStopwatch


class Event:
    """An event of a stream whose clock goes on by a second with each."""

    clock_s = 0.0

    def __init__(self, enable_timing):
        self.at_s = None

    def record(self, stream):
        Event.clock_s += 1.0
        self.at_s = Event.clock_s

    def elapsed_time(self, other):
        if self.at_s is None or other.at_s is None:
            raise ValueError("Both events must be recorded")
        return 1e3 * (other.at_s - self.at_s)


@pytest.fixture
def watch(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return CudaStopwatch(3, torch.device("cuda", 0))


def test_moments_are_read_from_the_first(watch):
    watch.mark(0)
    watch.mark(2)
    seconds = watch.read()
    assert seconds[0] == 0.0
    assert math.isnan(seconds[1])
    assert seconds[2] == 1.0


def test_without_the_first_moment_none_can_be_read(watch):
    """As in the first step of a loop that calls only parts of its model."""
    watch.mark(1)
    assert all(map(math.isnan, watch.read()))
    watch.mark(0)
    watch.read()
    watch.mark(1)
    assert all(map(math.isnan, watch.read()))
