"""An emulated link changes when collectives end, and nothing else."""

from __future__ import annotations

import gc
import time
import weakref

import pytest
import torch

from comm_plan.collectives.emulation import emulate
from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.errors import CollectiveError, InputError, PeerError
from comm_plan.plans import EmulatedLink
from comm_plan.tests.support.engines import ENGINES
from comm_plan.tests.support.harness import real_ranks, run_ranks
from comm_plan.tests.transports import transport_checks
from comm_plan.transports.local import LocalTransport

FAST = EmulatedLink(bytes_per_s=1e12, latency_s=0.0)
SLOW = EmulatedLink(bytes_per_s=1e6, latency_s=1e-3)
NUMEL = 5_000  # 20 ms on the slow link
LATE_S = 0.1

CALLS = {
    "allreduce": lambda transport, tensor: transport.all_reduce(tensor),
    "allgather": lambda transport, tensor: transport.all_gather(tensor),
    "reduce_scatter": lambda transport, tensor: transport.reduce_scatter(tensor),
    "broadcast": lambda transport, tensor: transport.broadcast(tensor),
}


def check_primitive(transport, check):
    transport_checks.every_dtype(emulate(transport, FAST), check)


def check_duplicate(transport):
    transport_checks.two_channels(emulate(transport, FAST))


@pytest.mark.parametrize("check", transport_checks.CHECKS)
def test_results_are_those_of_the_transport(check):
    run_ranks(3, check_primitive, check)


@pytest.mark.parametrize("engine", ENGINES)
def test_results_are_those_of_a_real_engine(engine):
    ranks = real_ranks(engine)
    for check in transport_checks.CHECKS:
        ranks.run(4, check_primitive, check)


def seconds(collective, world_size):
    known = COLLECTIVES[collective]
    nbytes = known.buffer_nbytes(4 * NUMEL, world_size)
    return known.terms(world_size).seconds(nbytes, SLOW.latency_s, 1e-6)


@pytest.mark.parametrize("collective", CALLS)
def test_all_wait_until_the_link_is_done_after_the_last_came(collective):
    def rank(transport):
        emulated = emulate(transport, SLOW)
        tensor = torch.ones(NUMEL - NUMEL % 3)
        transport.barrier()
        if transport.rank == 1:
            time.sleep(LATE_S)
        came_s = time.monotonic()
        CALLS[collective](emulated, tensor)
        return came_s, time.monotonic()

    came_s, left_s = zip(*run_ranks(3, rank), strict=True)
    last = max(came_s) if collective != "broadcast" else max(came_s[:1])
    assert min(left_s) >= last + 0.999 * seconds(collective, 3)


def test_a_receiver_waits_from_when_the_sender_came():
    def rank(transport):
        emulated = emulate(transport, SLOW)
        tensor = torch.ones(NUMEL)
        transport.barrier()
        if transport.rank == 0:
            time.sleep(LATE_S)
            came_s = time.monotonic()
            emulated.send(tensor, 1)
        else:
            came_s = time.monotonic()
            emulated.receive(tensor, 0)
        return came_s, time.monotonic()

    (sent_s, _), (_, received_s) = run_ranks(2, rank)
    assert received_s >= sent_s + 0.999 * seconds("point_to_point", 2)


def test_unequal_messages_cost_as_much_as_the_longest():
    def rank(transport):
        emulated = emulate(transport, SLOW)
        tensor = torch.ones(NUMEL if transport.rank else 1)
        transport.barrier()
        came_s = time.monotonic()
        parts = emulated.all_gather_unequal(tensor)
        return [len(part) for part in parts], time.monotonic() - came_s

    for lengths, elapsed_s in run_ranks(2, rank):
        assert lengths == [1, NUMEL]
        assert elapsed_s >= 0.999 * seconds("allgather", 2)


def test_everything_knows_the_link():
    def rank(transport):
        emulated = emulate(transport, SLOW)
        return emulated.emulated_link, emulated.duplicate().emulated_link

    assert run_ranks(2, rank) == [(SLOW, SLOW)] * 2


def test_duplicates_change_with_it_and_are_not_kept_for_that():
    emulated = emulate(LocalTransport(), SLOW)
    kept, dropped = emulated.duplicate(), weakref.ref(emulated.duplicate())
    gc.collect()
    assert dropped() is None
    emulated.change(FAST)
    assert kept.emulated_link == FAST


def test_a_failure_is_explained_by_the_transport_within(monkeypatch):
    inner, verdict = LocalTransport(), PeerError("rank 1 died")
    monkeypatch.setattr(inner, "explain", lambda error: verdict)
    assert emulate(inner, SLOW).explain(CollectiveError("timed out")) is verdict


def test_several_hosts_are_refused(monkeypatch):
    def rank(transport):
        names = iter(["one", "two"])
        monkeypatch.setattr(
            transport, "gather_objects", lambda value: [next(names), next(names)]
        )
        emulate(transport, SLOW)

    with pytest.raises(InputError, match="2 hosts"):
        run_ranks(2, rank)
