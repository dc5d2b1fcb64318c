"""Every transport does what the interface says, on every engine."""

from __future__ import annotations

import os
import sys
from collections import deque
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from comm_plan.errors import CollectiveError
from comm_plan.tests.support.engines import ANYWHERE
from comm_plan.tests.support.harness import MAX_RANKS, real_ranks
from comm_plan.tests.transports import transport_checks
from comm_plan.transports import distributed
from comm_plan.transports.distributed import _without_the_others
from comm_plan.transports.local import LocalTransport

engines = pytest.mark.parametrize("engine", ANYWHERE)
world_sizes = pytest.mark.parametrize("world_size", [1, 2, 3, 4])


@engines
@world_sizes
@pytest.mark.parametrize("check", transport_checks.CHECKS)
def test_primitives_match_their_definition(engine, world_size, check):
    real_ranks(engine).run(world_size, transport_checks.every_dtype, check)


@engines
@world_sizes
def test_objects_arrive(engine, world_size):
    real_ranks(engine).run(world_size, transport_checks.objects)


@engines
@world_sizes
def test_inputs_are_kept(engine, world_size):
    real_ranks(engine).run(world_size, transport_checks.inputs_are_kept)


@engines
def test_a_duplicate_is_an_independent_channel(engine):
    # Torch wants all ranks of the run to take part in making a group.
    real_ranks(engine).run(MAX_RANKS, transport_checks.two_channels)


@pytest.mark.skipif(sys.platform != "linux", reason="the policy is Linux's")
def test_gloo_s_event_loops_take_no_core_from_others():
    policies = real_ranks("gloo").run(MAX_RANKS, transport_checks.loops_of)
    assert policies == [{os.SCHED_BATCH}] * MAX_RANKS


@pytest.mark.parametrize(
    "check", sorted(set(transport_checks.CHECKS) - {"point_to_point", "exchange"})
)
def test_one_rank_alone_matches_the_definition(check):
    transport_checks.every_dtype(LocalTransport(), check)


def test_one_rank_alone_has_nobody_to_send_to():
    with pytest.raises(CollectiveError, match="one rank"):
        LocalTransport().send(torch.ones(1), 1)
    with pytest.raises(CollectiveError, match="one"):
        LocalTransport().exchange(torch.ones(1), 1, torch.ones(1), 1)
    with pytest.raises(CollectiveError, match="one"):
        LocalTransport().receive(torch.ones(1), 1)


def test_what_one_rank_gathers_is_its_own_memory():
    tensor = torch.ones(3)
    for gathered in (
        LocalTransport().all_gather(tensor),
        *LocalTransport().all_gather_unequal(tensor),
        LocalTransport().reduce_scatter(tensor),
        LocalTransport().all_to_all(tensor, [3]),
    ):
        gathered.zero_()
    assert tensor.tolist() == [1, 1, 1]


@pytest.mark.usefixtures("one_rank_group")
@pytest.mark.parametrize("some", [True, False])
def test_a_group_of_some_is_not_split_off_one_that_is_bound_to_a_device(some):
    bound = torch.device("cuda", 0)
    world = dist.group.WORLD
    world.bound_device_id = bound
    with _without_the_others(some):
        assert world.bound_device_id == (None if some else bound)
    assert world.bound_device_id == bound
    world.bound_device_id = None


@pytest.mark.usefixtures("one_rank_group")
@pytest.mark.parametrize(
    ("config", "model_on", "backend", "device"),
    [
        ("cpu:gloo,cuda:nccl", "cpu", "gloo", "cpu"),
        ("cpu:gloo,cuda:nccl", "cuda:1", "nccl", "cuda:1"),
        ("cpu:gloo,cuda:nccl", None, "nccl", "cuda:0"),
        ("cuda:nccl", "cpu", "nccl", "cuda:0"),
        ("cpu:gloo,cuda:gloo", "cuda:1", "gloo", "cuda:1"),
    ],
)
def test_a_group_moves_what_is_where_the_model_is_if_it_can(
    config, model_on, backend, device, monkeypatch
):
    monkeypatch.setattr(dist, "get_backend_config", lambda group: config)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(distributed, "_timeout_of", lambda group, device: None)
    ranks = distributed.over(None, None if model_on is None else torch.device(model_on))
    assert (ranks.backend, str(ranks.device)) == (backend, device)


def test_of_large_objects_only_the_last_are_held(monkeypatch):
    held = deque(maxlen=32)
    monkeypatch.setattr(distributed, "_held", held)
    work = SimpleNamespace(wait=lambda: None)
    for _ in range(40):
        distributed._hold(work, torch.zeros(8))
    assert len(held) == 32
    for _ in range(40):
        distributed._hold(work, torch.zeros(2**20))
    assert len(held) == distributed.LAST_HELD
