"""Every rank learns which rank failed, how, and in the same words."""

from __future__ import annotations

import socket
import sys

import pytest

from comm_plan.errors import CollectiveError, PeerError, RunError
from comm_plan.tests.support.harness import run_ranks
from comm_plan.tests.transports import connecting_ranks
from comm_plan.transports import launch, liveness
from comm_plan.transports.launch import run_local
from comm_plan.transports.links import connect_links, reachable_address
from comm_plan.transports.liveness import Liveness

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


def test_the_first_verdict_stays():
    def program(transport):
        watched = watch(transport, [])
        watched.fail("first")
        watched.fail("second")
        watched.close()
        return str(watched.explain(CollectiveError("x")))

    assert run_ranks(1, program) == ["rank 0 failed: first"]


def test_strangers_at_the_door_are_sent_away():
    class Knocking:
        def __init__(self, transport):
            self.rank, self.world_size = transport.rank, transport.world_size
            self._transport = transport

        def broadcast_object(self, value, root=0):
            address = self._transport.broadcast_object(value, root)
            for words in (b"GET / HTTP/1.1\n", b"hello 7\n", b""):
                with socket.create_connection(address) as stranger:
                    stranger.sendall(words)
            return address

    def program(transport):
        links = connect_links(Knocking(transport), "127.0.0.1")
        transport.barrier()
        for link in links:
            link.close()
        return sorted(link.rank for link in links)

    assert run_ranks(3, program) == [[1, 2], [0], [0]]


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


@pytest.mark.slow
def test_ranks_stuck_with_a_stopped_one_are_ended(capfd, monkeypatch):
    monkeypatch.setattr(launch, "_GRACE_S", 3.0)
    monkeypatch.setattr(launch, "_TERMINATE_S", 0.1)
    assert run("gloo", "stop", 2, 4.0) == 1
    assert capfd.readouterr().err.splitlines() == [
        "on the spot: rank 2 is silent for 4 s: it is stopped or cut off from the "
        "network"
    ] * (RANKS - 1)
