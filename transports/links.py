"""One line-based TCP connection between rank 0 and each other rank.

:mod:`~comm_plan.transports.liveness` says what is sent over them and why.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from contextlib import suppress
from typing import Any, Protocol

from comm_plan.errors import PeerError
from comm_plan.transports.door import Door, hello, listen

LOOPBACK = "127.0.0.1"

_CONNECT_S = 30.0
_WRITE_S = 1.0
_LINE_NBYTES = 1 << 16


class Ranks(Protocol):
    """What connecting asks of a transport."""

    rank: int
    world_size: int

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return rank ``root``'s ``value``."""
        ...

    def gather_objects(self, value: Any) -> list[Any]:
        """Return every rank's ``value``, by rank."""
        ...


class Link:
    """A connection to one rank that carries lines.

    Args:
        connection: to it.
        rank: the rank at the other end.
        unread: what it has said already.

    Attributes:
        rank: the rank at the other end.
        closed: whether the other end was closed.
        done: whether the other end said that its work is done.
        silent_beats: beats since it was heard last.
    """

    def __init__(
        self, connection: socket.socket, rank: int, unread: bytes = b""
    ) -> None:
        connection.settimeout(_WRITE_S)
        self.rank = rank
        self.closed = False
        self.done = False
        self.silent_beats = 0
        self._connection = connection
        self._unread = unread

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._connection.fileno()

    def read(self) -> list[str]:
        """Return the whole lines that have come; note when the other end closed.

        A line without end counts as closed.
        """
        try:
            received = self._connection.recv(4096)
        except OSError:
            received = b""
        *lines, self._unread = (self._unread + received).split(b"\n")
        self.closed = not received or len(self._unread) > _LINE_NBYTES
        return [line.decode(errors="replace") for line in lines]

    def write(self, line: str) -> None:
        """Send ``line``; a broken connection shows when it is read."""
        with suppress(OSError):
            self._connection.sendall(line.encode() + b"\n")

    def finish_writing(self) -> None:
        """Let the other end see that nothing more comes."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def hang_up(self) -> None:
        """Let whoever reads find the other end closed, whether it is or not."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end."""
        self._connection.close()


def reachable_address(master_address: str) -> str:
    """Return the address at which other hosts reach this one.

    It is the local address on the way to ``master_address``, torch's MASTER_ADDR, or
    that itself where the way does not leave this host: with torchrun's rendezvous
    rank 0 need not be at MASTER_ADDR.
    """
    family, kind, _, _, target = socket.getaddrinfo(
        master_address, 1, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)  # sends nothing, only picks the way
        own: str = probe.getsockname()[0]
    return master_address if ipaddress.ip_address(own).is_loopback else own


def address_of_rank_0(ranks: Ranks, master_address: str | None = None) -> str:
    """Return the address at which the others reach rank 0; a collective call.

    It is the local one on the way to ``master_address``, else to the first rank on
    another host, else the loopback interface's. Hosts are told apart by their names.

    Args:
        ranks: a transport over all ranks.
        master_address: torch's MASTER_ADDR, None without one; only rank 0's counts, and
            where it leads nowhere, not even that: the ranks have met otherwise.

    Returns:
        On other ranks than 0 an address that means nothing.

    Raises:
        PeerError: on rank 0, where it knows no way to the other host.
    """
    first, *others = ranks.gather_objects(socket.gethostname())
    elsewhere = [host for host in others if host != first]
    if ranks.rank > 0:
        return LOOPBACK
    if master_address:
        with suppress(OSError):
            return reachable_address(master_address)
    return _address_towards(elsewhere[0]) if elsewhere else LOOPBACK


def _address_towards(host: str) -> str:
    try:
        return reachable_address(host)
    except OSError as error:
        raise PeerError(
            f"rank 0 knows no way to the host {host} of another rank ({error}): enter "
            "the names of all hosts in /etc/hosts, or set MASTER_ADDR for gloo and nccl"
        ) from error


def connect_links(ranks: Ranks, address: str) -> list[Link]:
    """Connect every rank with rank 0; a collective call.

    Args:
        ranks: a transport over all ranks.
        address: how the others reach rank 0; only rank 0's counts.

    Returns:
        On rank 0 a link to each other rank, elsewhere one link to rank 0.

    Raises:
        PeerError: the connections do not come about within 30 s.
    """
    if ranks.rank == 0:
        secret = secrets.token_hex(16)
        with listen(address) as server:
            ranks.broadcast_object((address, server.getsockname()[1], secret))
            return _admit(Door(server, secret, ranks.world_size), ranks.world_size)
    host, port, secret = ranks.broadcast_object(None)
    try:
        connection = socket.create_connection((host, port), timeout=_CONNECT_S)
    except OSError as error:
        raise PeerError(
            f"rank {ranks.rank} cannot connect to rank 0 at {host} port {port} "
            f"({error}): let the hosts of a run reach each other on all ports"
        ) from error
    link = Link(connection, rank=0)
    link.write(hello(ranks.rank, secret))
    return [link]


def _admit(door: Door, world_size: int) -> list[Link]:
    door.admit(_CONNECT_S)
    missing = sorted(set(range(1, world_size)) - set(door.inside))
    if missing:
        raise PeerError(
            f"ranks {missing} do not connect to rank 0: let the hosts of a run "
            "reach each other on all ports"
        )
    return [
        Link(connection, rank, unread)
        for rank, (connection, unread) in door.inside.items()
    ]
