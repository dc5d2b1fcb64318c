"""Rank 0 lets in the ranks of its run, whoever else is at the door."""

from __future__ import annotations

import pickle
import resource
import socket
import threading
from contextlib import ExitStack, contextmanager

import pytest

from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports import door
from comm_plan.transports.door import Door, hello, listen
from comm_plan.transports.links import Link, connect_links

SECRET = "0123456789abcdef"
RANKS = 3


class Visited:
    """A rank's transport; before the ranks learn the address, strangers use it.

    What the strangers hold open stays open for the length of the block.
    """

    def __init__(self, transport, strangers, stack):
        self.rank, self.world_size = transport.rank, transport.world_size
        self._transport, self._strangers, self._stack = transport, strangers, stack

    def broadcast_object(self, value, root=0):
        if self.rank == root:
            address = value[:2]
            for said in self._strangers:
                connection = socket.create_connection(address)
                self._stack.enter_context(connection)
                connection.sendall(said)
        return self._transport.broadcast_object(value, root)


def connect_among(strangers):
    """Connect ranks with ``strangers`` before them; return whom each is linked to."""

    def program(transport):
        with ExitStack() as stack:
            links = connect_links(Visited(transport, strangers, stack), "127.0.0.1")
            transport.barrier()
            for link in links:
                link.close()
        return sorted(link.rank for link in links)

    return run_ranks(RANKS, program)


@contextmanager
def files(number):
    """Allow this process so many open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n",
        b"hello 1\n",
        b"hello 1 wrong\n",
        b"hello 1 \n",
        b"\xff" * 1000 + b"\n",
        b"endless" * 1000,
        pickle.dumps(["no", "pickle"]),
        b"hello 1",
        b"",
    ],
    ids=lambda said: repr(said[:12]),
)
def test_a_stranger_does_not_keep_the_ranks_out(said):
    assert connect_among([said]) == [[1, 2], [0], [0]]


def test_a_thousand_idle_strangers_do_not_keep_the_ranks_out():
    with files(2500):
        assert connect_among([b""] * 1000) == [[1, 2], [0], [0]]


def callers(*lines, world_size=RANKS, within_s=0.5):
    """Return the ranks let in of those who say ``lines``, and what was said after."""
    with ExitStack() as stack:
        server = stack.enter_context(listen("127.0.0.1"))
        for line in lines:
            connection = socket.create_connection(server.getsockname())
            stack.enter_context(connection).sendall(line)
        entrance = Door(server, SECRET, world_size)
        entrance.admit(within_s)
        for connection, _ in entrance.inside.values():
            connection.close()
        return {rank: after for rank, (_, after) in entrance.inside.items()}


def says(rank, secret=SECRET):
    return f"{hello(rank, secret)}\n".encode()


def test_what_a_rank_says_after_its_hello_is_kept():
    assert callers(says(1) + b"beat 0", says(2)) == {1: b"beat 0", 2: b""}


@pytest.mark.parametrize("rank", [0, -1, RANKS, "", "1 1", "\u0661"])
def test_only_ranks_of_the_run_come_in(rank):
    assert callers(says(rank), says(1), says(2), within_s=60) == {1: b"", 2: b""}


def test_the_first_to_say_a_rank_stays():
    assert callers(says(1) + b"first", says(1) + b"second", world_size=2) == {
        1: b"first"
    }


def test_who_says_nothing_for_long_is_sent_away(monkeypatch):
    """While the door is still open for others."""
    monkeypatch.setattr(door, "HELLO_S", 0.1)
    with ExitStack() as stack:
        server = stack.enter_context(listen("127.0.0.1"))
        silent = stack.enter_context(socket.create_connection(server.getsockname()))
        silent.settimeout(60)
        entrance = Door(server, SECRET, 2)
        admitting = threading.Thread(target=entrance.admit, args=(60.0,))
        admitting.start()
        assert silent.recv(1) == b""
        assert admitting.is_alive()
        monkeypatch.setattr(door, "HELLO_S", 60.0)
        rank = stack.enter_context(socket.create_connection(server.getsockname()))
        rank.sendall(says(1))
        admitting.join()
        for connection, _ in entrance.inside.values():
            connection.close()
    assert set(entrance.inside) == {1}


@pytest.mark.parametrize(
    ("address", "interface"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("::1", "::1"),
        ("127.0.0.2", "0.0.0.0"),
    ],
)
def test_it_listens_on_the_interface_of_the_address(address, interface):
    """One that means this host alone, other than by these names, may mean another."""
    with listen(address) as server:
        assert server.getsockname()[0] == interface


def test_a_line_without_end_from_a_rank_counts_as_closed():
    ours, theirs = socket.socketpair()
    with theirs:
        link = Link(ours, rank=1)
        for _ in range(100):
            theirs.sendall(b"x" * 1000)
            assert link.read() == []
        assert link.closed
        link.close()
