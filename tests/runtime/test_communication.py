"""The communication thread runs jobs in order, keeps a failure, and knows itself."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

from comm_plan.errors import RunError
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


def test_who_waits_runs_what_is_not_begun_in_order(thread):
    ran_on, begun, go_on = [], threading.Event(), threading.Event()

    def first():
        begun.set()
        go_on.wait()

    thread.submit(first)
    begun.wait()
    rest = [
        thread.submit(lambda n=n: ran_on.append((n, threading.get_ident())), wake=False)
        for n in range(3)
    ]
    go_on.set()
    for pending in rest:
        pending.wait()
    assert [n for n, _ in ran_on] == [0, 1, 2]


def test_a_job_that_wakes_nobody_is_run_by_who_waits(thread):
    job = thread.submit(lambda: (threading.get_ident(), thread.is_current), wake=False)
    assert job.wait() == (threading.get_ident(), True)
    assert not thread.is_current


def test_who_waits_idly_runs_nothing(thread):
    job = thread.submit(threading.get_ident)
    assert job.wait(idle=True) != threading.get_ident()


def test_who_waits_lends_no_autocast(thread):
    with torch.autocast("cpu"):
        job = thread.submit(lambda: torch.is_autocast_enabled("cpu"), wake=False)
        assert not job.wait()


def test_closing_runs_what_nobody_waited_for():
    thread, ran = CommunicationThread(torch.device("cpu")), []
    thread.submit(lambda: ran.append(True), wake=False)
    thread.close()
    assert ran == [True]


def test_no_job_is_forgotten_however_threads_take_turns(thread, quick_switches):
    """Some wake the thread, some do not, and it ends a queue at any moment."""
    for n in range(3000):
        first = thread.submit(lambda n=n: n)
        second = thread.submit(lambda n=n: -n, wake=False)
        if n % 3:
            assert first.wait() == n
        assert second.wait() == -n


def test_an_interrupt_is_an_error_of_all_later_jobs(thread):
    def interrupted():
        raise KeyboardInterrupt

    job = thread.submit(interrupted, wake=False)
    with pytest.raises(KeyboardInterrupt):
        job.wait()
    with pytest.raises(RunError, match="go on from a checkpoint"):
        job.wait()
    with pytest.raises(RunError, match="go on from a checkpoint"):
        thread.submit(lambda: None).wait()


def test_an_interrupt_right_before_a_job_leaves_nobody_waiting(thread, monkeypatch):
    def interrupted(job, future):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(thread, "_run", interrupted)
    job = thread.submit(lambda: None, wake=False)
    with pytest.raises(KeyboardInterrupt):
        job.wait()
    with pytest.raises(RunError, match="go on from a checkpoint"):
        job.wait()
