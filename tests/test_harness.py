"""The ranks that other tests trust: they answer in order, and never hang."""

from __future__ import annotations

from operator import attrgetter, itemgetter

import pytest
import torch

from comm_plan.errors import CollectiveError
from comm_plan.tests.support.harness import MAX_RANKS, real_ranks, run_ranks
from comm_plan.tests.support.rank_programs import dies


def test_results_come_in_rank_order():
    assert run_ranks(9, lambda t: (t.rank, t.world_size)) == [(r, 9) for r in range(9)]


def test_the_first_failure_reaches_the_caller_and_frees_the_others():
    def fail_on_two(transport):
        if transport.rank == 2:
            raise KeyError("rank 2")
        transport.barrier()

    with pytest.raises(KeyError, match="rank 2"):
        run_ranks(4, fail_on_two)


def test_a_failure_frees_those_who_wait_on_a_duplicate_or_a_receive():
    def fail_late(transport):
        duplicate = transport.duplicate()
        if transport.rank == 0:
            raise KeyError("rank 0")
        if transport.rank == 1:
            duplicate.barrier()
        transport.receive(torch.empty(1), 0)

    with pytest.raises(KeyError, match="rank 0"):
        run_ranks(3, fail_late)


def test_calls_that_do_not_match_are_refused():
    with pytest.raises(CollectiveError, match="disagree"):
        run_ranks(2, lambda t: t.all_gather(torch.zeros(1 + t.rank)))


def test_an_int8_sum_that_overflows_is_refused():
    with pytest.raises(CollectiveError, match="int8"):
        run_ranks(2, lambda t: t.all_reduce(torch.tensor([100], dtype=torch.int8)))


@pytest.mark.slow
def test_a_failure_on_a_real_rank_is_told_and_new_ranks_take_over():
    with pytest.raises(RuntimeError, match="not subscriptable"):
        real_ranks("gloo").run(3, itemgetter("no transport has items"))
    assert real_ranks("gloo").run(MAX_RANKS, attrgetter("rank")) == list(range(9))


@pytest.mark.slow
def test_a_real_rank_that_dies_is_named_and_others_are_started():
    with pytest.raises(RuntimeError, match="rank 1: it died"):
        real_ranks("gloo").run(2, dies)
    assert real_ranks("gloo").run(2, attrgetter("rank")) == [0, 1]
