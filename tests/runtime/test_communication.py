"""The communication thread runs jobs in order, keeps a failure, and knows itself."""

from __future__ import annotations

import sys

import pytest
import torch

from comm_plan.runtime.communication import CommunicationThread


@pytest.fixture
def thread():
    made = CommunicationThread(torch.device("cpu"))
    yield made
    made.close()


@pytest.fixture
def quick_switches():
    """Let a thread that has just been started run before the one that started it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-9)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
def test_it_knows_itself_from_its_first_job_on():
    for _ in range(200):
        thread = CommunicationThread(torch.device("cpu"))
        first = thread.submit(lambda thread=thread: thread.is_current)
        assert not thread.is_current
        assert first.wait()
        thread.close()


def test_jobs_run_in_order(thread):
    done = []
    pending = [thread.submit(lambda n=n: done.append(n)) for n in range(20)]
    for each in pending:
        each.wait()
    assert done == list(range(20))


def test_the_first_failure_is_that_of_all_later_jobs(thread):
    def fail():
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        thread.submit(fail).wait()
    with pytest.raises(ValueError, match="first"):
        thread.submit(lambda: None).wait()
