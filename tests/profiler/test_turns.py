"""Turns: enough of them, equally many on all ranks."""

import time

from comm_plan.profiler import turns
from comm_plan.profiler.turns import TURNS, in_turns
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport


def test_short_turns_are_many_but_not_too_many():
    assert in_turns(LocalTransport(), lambda done: done) == list(range(TURNS[1]))


def test_long_turns_are_few(monkeypatch):
    monkeypatch.setattr(turns, "LONG_ENOUGH_S", 0.0)
    assert in_turns(LocalTransport(), lambda done: done) == list(range(TURNS[0]))


def test_all_ranks_take_equally_many(monkeypatch):
    monkeypatch.setattr(turns, "LONG_ENOUGH_S", 0.05)

    def body(ranks):
        return len(in_turns(ranks, lambda done: time.sleep(0.005 * ranks.rank)))

    assert len(set(run_ranks(3, body))) == 1
