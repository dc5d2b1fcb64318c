"""Every rank learns which rank failed, how, and in the same words."""

from __future__ import annotations

import gc
import itertools
import re
import sys
import threading
import weakref
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis.strategies import builds, integers, lists

from comm_plan.errors import CollectiveError, PeerError, RunError
from comm_plan.tests.support.harness import mpirun, run_ranks
from comm_plan.tests.transports import connecting_ranks
from comm_plan.transports import launch, liveness
from comm_plan.transports.calls import Calls
from comm_plan.transports.launch import run_local
from comm_plan.transports.links import reachable_address
from comm_plan.transports.liveness import Liveness
from comm_plan.transports.progress import Progress

RANKS = 4


def watch(transport, reports):
    return Liveness(transport, address="127.0.0.1", report=reports.append)


@pytest.mark.parametrize("failing", range(RANKS))
def test_all_ranks_name_the_one_that_failed_and_its_cause(failing):
    reports = []

    def program(transport):
        watched = watch(transport, reports)
        if transport.rank == failing:
            watched.fail("no space\nleft")
            verdict = None
        else:
            verdict = watched.explain(CollectiveError("connection reset"))
        watched.close()
        return verdict

    verdicts = run_ranks(RANKS, program)
    assert verdicts.pop(failing) is None
    for verdict in verdicts:
        assert isinstance(verdict, PeerError)
        assert str(verdict) == f"rank {failing} failed: no space left"
    assert not reports


def test_a_failure_that_nobody_explains_stays_and_reaches_the_others(monkeypatch):
    monkeypatch.setattr(liveness, "_EXPLAIN_S", 0.1)
    timed_out = CollectiveError("all-reduce timed out")

    def program(transport):
        watched = watch(transport, [])
        if transport.rank == 1:
            result = watched.explain(timed_out)
        else:
            assert watched._judged.wait(20)
            result = watched.explain(CollectiveError("connection reset"))
        watched.close()
        return result

    results = run_ranks(3, program)
    assert results[1] is timed_out
    assert {str(results[0]), str(results[2])} == {"rank 1 failed: all-reduce timed out"}


def test_ranks_that_leave_in_order_judge_nobody():
    def program(transport):
        watched = watch(transport, [])
        transport.barrier()
        watched.close()
        return watched._verdict

    assert run_ranks(RANKS, program) == [None] * RANKS


def test_nothing_is_kept_of_a_run_that_has_ended():
    def program(transport):
        watched = watch(transport, [])
        transport.barrier()
        watched.close()
        watched._thread.join(20)
        return weakref.ref(watched)

    ended = run_ranks(2, program)
    gc.collect()
    assert [reference() for reference in ended] == [None, None]


def test_a_rank_leaves_though_another_does_not_answer(monkeypatch):
    monkeypatch.setattr(liveness, "_LINGER_S", 0.1)
    failures, left = [], threading.Event()
    monkeypatch.setattr(threading, "excepthook", failures.append)
    read = Liveness._read

    def read_late(watched):
        if watched._rank == 0:
            left.wait(20)
        read(watched)

    monkeypatch.setattr(Liveness, "_read", read_late)

    def program(transport):
        watched = watch(transport, [])
        if transport.rank == 1:
            watched.close()
            watched._thread.join(20)
            left.set()
        else:
            left.wait(20)
            watched.close()
        return watched._thread.is_alive(), watched._links, watched._verdict

    assert run_ranks(2, program) == [(False, [], None)] * 2
    assert not failures


def test_the_first_verdict_stays():
    def program(transport):
        watched = watch(transport, [])
        watched.fail("first")
        watched.fail("second")
        watched.close()
        return str(watched.explain(CollectiveError("x")))

    assert run_ranks(1, program) == ["rank 0 failed: first"]


def note_all(transport, progress):
    """Let every rank say where it is; return the verdict of each, None at the end."""
    reports = []
    watched = watch(transport, reports)
    watched.note(progress[transport.rank])
    transport.barrier()
    verdict = None
    if len(set(progress)) > 1:
        assert watched._judged.wait(20)
        verdict = watched._verdict
    watched.close()
    return verdict


@pytest.mark.parametrize("short", range(3))
def test_a_rank_that_has_run_out_of_batches_is_named(short):
    progress = [Progress(2, 8)] * 3
    progress[short] = Progress(2, 7, at_end=True)
    verdicts = run_ranks(3, note_all, progress)
    (verdict,) = set(verdicts)
    assert verdict in {
        f"rank {short} has run out of batches in epoch 2 after 7, rank {other} has "
        "more: give all ranks as many"
        for other in {0, 1, 2} - {short}
    }


@given(lists(builds(Progress, integers(0, 2), integers(0, 9)), min_size=2, max_size=5))
def test_nobody_is_blamed_who_still_has_batches(everyone):
    for progress, other in itertools.permutations(everyone, 2):
        assert not progress.ran_out_before(other)
        ended = replace(progress, at_end=True)
        more = other.batches > progress.batches and other.epoch == progress.epoch
        assert ended.ran_out_before(other) == more
        assert Progress.parse(str(ended)) == ended


def test_rank_0_is_reached_where_the_others_look_for_it():
    assert reachable_address("localhost") == "localhost"
    assert reachable_address("127.0.0.1") == "127.0.0.1"


def run(*arguments):
    """Run ``connecting_ranks`` on all ranks; return the exit code."""
    command = [sys.executable, "-m", connecting_ranks.__name__, *map(str, arguments)]
    return run_local(command, RANKS)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_named_by_every_other(victim, capfd):
    with pytest.raises(RunError, match=f"rank {victim} was killed by SIGKILL"):
        run("gloo", "kill", victim)
    assert capfd.readouterr().err.splitlines() == [
        f"PeerError: rank {victim} died: its connection closed without a word"
    ] * (RANKS - 1)


@pytest.mark.slow
def test_the_cause_of_a_failing_rank_reaches_every_other(capfd):
    assert run("gloo", "fail", 1) != 0
    assert sorted(set(capfd.readouterr().err.splitlines())) == [
        "InputError: the data",
        "PeerError: rank 1 failed: the data is missing",
        "is missing",
    ]


SILENT = (
    "on the spot: rank 2 is silent for 4 s: it is stopped, cut off from the network, "
    "or in a call that holds Python's interpreter lock"
)


@pytest.mark.slow
def test_ranks_stuck_with_a_stopped_one_are_ended(capfd, monkeypatch):
    """And nobody waits for it: the test would never end."""
    monkeypatch.setattr(launch, "_GRACE_S", 1000.0)
    monkeypatch.setattr(launch, "_TERMINATE_S", 1000.0)
    assert run("gloo", "stop", 2, 4.0) == 1
    assert capfd.readouterr().err.splitlines() == [SILENT] * (RANKS - 1)


@pytest.mark.slow
def test_a_rank_that_is_suspended_for_less_than_the_patience_is_waited_for(capfd):
    assert run("gloo", "pause", 2, 60.0) == 0
    assert sorted(capfd.readouterr().err.splitlines()) == [
        f"well: gloo {rank}" for rank in range(RANKS)
    ]


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.skipif(mpirun() is None, reason="mpirun is not here")
def test_a_stopped_rank_is_named_under_mpi_too(capfd):
    """Mpirun ends the others once the first of them has ended."""
    command = [sys.executable, "-m", connecting_ranks.__name__]
    assert run_local([*command, "mpi", "stop", "2", "4.0"], RANKS, "mpi") == 1
    assert SILENT in capfd.readouterr().err.splitlines()


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.skipif(mpirun() is None, reason="mpirun is not here")
def test_a_collective_under_mpi_ends_after_the_timeout(capfd):
    """Of a rank that is well, but elsewhere."""
    command = [sys.executable, "-m", connecting_ranks.__name__]
    assert run_local([*command, "mpi", "dally", "2", "60", "3"], RANKS, "mpi") == 1
    assert re.search(
        "on the spot: rank [013] has waited for 3 s for the other ranks in all-reduce",
        capfd.readouterr().err,
    )


def test_calls_are_as_old_as_the_beats_they_have_seen():
    calls = Calls(timeout_s=1.0)
    assert calls.beat() is None
    with calls.under_way("all-reduce"):
        calls.beat()
        with calls.under_way("barrier"):
            oldest = calls.beat()
            assert (oldest.operation, oldest.beats) == ("all-reduce", 2)
    with suppress(KeyError), calls.under_way("broadcast"):
        assert calls.beat().beats == 1
        raise KeyError
    assert calls.beat() is None


@pytest.mark.parametrize("left", range(3))
def test_a_rank_that_left_is_named_by_those_whose_calls_do_not_end(left, monkeypatch):
    monkeypatch.setattr(liveness, "_LEFT_S", 0.5)
    reports = []

    def program(transport):
        calls = Calls(timeout_s=1000.0)
        watched = Liveness(
            transport,
            address="127.0.0.1",
            report=reports.append,
            calls=calls,
        )
        transport.barrier()
        if transport.rank == left:
            watched.leave()
            return None
        with calls.under_way("all-reduce"):
            assert watched._judged.wait(20)
            watched.explain(CollectiveError("too late"))
        watched.close()
        return watched._verdict

    verdicts = run_ranks(3, program)
    assert verdicts.pop(left) is None
    assert set(verdicts) == {
        f"rank {left} has ended while others go on: give all ranks as many steps"
    }


def test_all_have_ended_20_s_after_a_rank_stopped():
    """The bounds that hold: the rest is left to mpirun and to busy machines."""
    a_beat_late = 2 * liveness._BEAT_S
    assert liveness.PATIENCE_S + a_beat_late + liveness.GRACE_S <= 17
