"""What is counted of sparse aggregations is what their closed forms say."""

from __future__ import annotations

import pytest
import torch

from comm_plan.benchmarks.sparse_volume import (
    DENSITY,
    NUMEL,
    WAYS,
    Messages,
    closed_form,
    counted,
)
from comm_plan.plans.compression import selected
from comm_plan.tests.support.harness import run_ranks
from comm_plan.tests.transports.transport_checks import equal, inputs

WORLD_SIZES = [1, 2, 3, 5, 8]


def check_collectives(transport):
    messages = Messages(transport)
    for numel in (1, 13):
        tensors = inputs(transport, numel, torch.float32)
        mine = tensors[transport.rank]
        equal(messages.all_gather(mine), torch.stack(tensors))
        total = mine.clone()
        messages.all_reduce(total)
        equal(total, sum(tensors[1:], tensors[0]))
        messages.broadcast(mine)
        equal(mine, inputs(transport, numel, torch.float32)[0])


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_rings_and_trees_of_messages_give_what_the_collectives_do(world_size):
    run_ranks(world_size, check_collectives)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("method", WAYS)
def test_the_busiest_rank_receives_what_the_closed_form_says(method, world_size):
    """Of gTop-k it receives the way up; parts of unequal size round by a few words."""
    share = 0.5 if method == "gtopk" else 1.0
    rounding = 4 * world_size / selected(NUMEL, DENSITY)
    expected = share * closed_form(method, world_size)
    assert counted(method, world_size) == pytest.approx(expected, abs=rounding)


@pytest.mark.parametrize(("method", "bound"), [("spardl", 4), ("partition-topk", 3)])
def test_the_volume_does_not_grow_with_the_ranks(method, bound):
    assert closed_form(method, 1024) < bound
    assert closed_form("gtopk", 1024) > 10 * closed_form(method, 1024)
