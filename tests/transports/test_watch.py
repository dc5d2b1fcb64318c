"""Whoever starts the ranks, and wherever: one that ends is seen for what it did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from comm_plan.benchmarks.hosts import EmulatedHosts, supported
from comm_plan.errors import PeerError
from comm_plan.transports import links
from comm_plan.transports.links import LOOPBACK, address_of_rank_0

PROGRAM = Path(__file__).parent / "forked_or_spawned.py"
METHODS = ["fork", "spawn", "torch"]
REASON = supported()

WITHOUT_MASTER_ADDR = """
import os, socket, sys
import torch.distributed as dist
from comm_plan.transports.connect import current_transport
del os.environ["MASTER_ADDR"]
rank, addresses = int(os.environ["RANK"]), sys.argv[1:]
socket.sethostname(addresses[rank])
meeting = f"tcp://{addresses[0]}:29500"
dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
assert current_transport().gather_objects(rank) == [0, 1]
dist.destroy_process_group()  # else gloo's threads may abort a process that ends now
"""


def run(method, fate, folder):
    """Return how the program ended."""
    return subprocess.run(
        [sys.executable, str(PROGRAM), method, fate, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_child_that_ends_well_is_not_taken_for_dead(method, tmp_path):
    ended = run(method, "returns", tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "error" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="its cause is not known then")
def test_a_child_that_raises_is_named_with_its_cause(method, tmp_path):
    ended = run(method, "raises", tmp_path)
    assert ended.returncode == 1
    assert "error: rank 1 failed: my data is broken" in ended.stderr


class Hosts:
    """Rank 0 of ranks on hosts of these names."""

    rank = 0

    def __init__(self, *names):
        self.names = names
        self.world_size = len(names)

    def gather_objects(self, value):
        return list(self.names)


@pytest.fixture
def ways(monkeypatch):
    """Let the address on the way to a host be ``to HOST``."""
    monkeypatch.setattr(links, "reachable_address", "to {}".format)


def test_rank_0_listens_on_the_way_to_another_host(ways):
    assert address_of_rank_0(Hosts("a", "a", "b", "c")) == "to b"


def test_rank_0_listens_at_home_where_all_are_on_one_host(ways):
    assert address_of_rank_0(Hosts("a", "a")) == LOOPBACK


def test_master_addr_counts_before_the_names_of_hosts(ways):
    assert address_of_rank_0(Hosts("a", "b"), "m") == "to m"


@pytest.mark.parametrize("left", ["", "m.invalid"])
def test_a_master_addr_that_another_program_has_left_does_not_count(left):
    """The ranks met by a file, say, of which DDP asks no more either."""
    assert address_of_rank_0(Hosts("a", "a"), left) == LOOPBACK


def test_a_host_that_rank_0_does_not_know_is_named():
    with pytest.raises(PeerError, match=r"knows no way to the host b\.invalid"):
        address_of_rank_0(Hosts("a", "b.invalid"))


@pytest.mark.slow
@pytest.mark.hosts
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_ranks_on_two_hosts_need_no_master_addr():
    """Hosts are named by their addresses: there is no DNS."""
    command = ["unshare", "--uts", sys.executable, "-c", WITHOUT_MASTER_ADDR]
    with EmulatedHosts(2) as hosts:
        results = hosts.run([*command, *hosts.addresses])
    assert [result.returncode for result in results] == [0, 0], results
