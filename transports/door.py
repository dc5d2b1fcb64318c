"""The door of a run: rank 0 lets in the ranks that know the run's secret.

Rank 0 listens at one address, until all other ranks have come. A rank says ``hello RANK
SECRET``, one line of text; the secret is compared in constant time. It is made for this
run and reached the ranks the way the address did, through the process group or MPI.

Whoever says anything else, says too much, or says nothing for 5 s is sent away. All are
heard at the same time, so strangers do not keep the ranks waiting, and only so many may
stand at the door: the one who came first is sent away for the next.
"""

from __future__ import annotations

import hmac
import ipaddress
import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass

HELLO_S = 5.0
_HELLO_NBYTES = 64
_AT_THE_DOOR = 256  # file descriptors are few
_BACKLOG = 1024
_LOOPBACKS = ("127.0.0.1", "::1", "localhost")


def hello(rank: int, secret: str) -> str:
    """Return what ``rank`` says to be let in."""
    return f"hello {rank} {secret}"


def listen(address: str) -> socket.socket:
    """Return a socket that listens on the interface of ``address``, at a free port.

    A host's name that means the loopback interface here (as Debian sets it up) means
    another one elsewhere: then it listens on all.
    """
    family, _, _, _, target = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    is_loopback = ipaddress.ip_address(target[0]).is_loopback
    anywhere = is_loopback and address not in _LOOPBACKS
    return socket.create_server(
        ("" if anywhere else address, 0), family=family, backlog=_BACKLOG
    )


@dataclass
class Caller:
    """Somebody at the door.

    Attributes:
        connection: to them.
        came_s: when, by the monotonic clock.
        said: so far.
    """

    connection: socket.socket
    came_s: float
    said: bytes = b""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self.connection.fileno()

    def listen(self) -> bool:
        """Take what they say; return whether they can still be a rank."""
        try:
            heard = self.connection.recv(4096)
        except OSError:
            return False
        self.said += heard
        return bool(heard) and (b"\n" in self.said or len(self.said) < _HELLO_NBYTES)

    def rank(self, secret: str, world_size: int) -> int | None:
        """Return which rank of the run they are; None: none of them."""
        word, _, rest = self.said.partition(b"\n")[0].partition(b" ")
        rank, _, known = rest.partition(b" ")
        if word != b"hello" or not hmac.compare_digest(known, secret.encode()):
            return None
        return int(rank) if rank.isdigit() and 0 < int(rank) < world_size else None


class Door:
    """Lets ranks in.

    Args:
        server: it listens.
        secret: of the run.
        world_size: number of ranks, rank 0 included.

    Attributes:
        inside: by rank, the connection to each that was let in, and what it said after
            its hello.
    """

    def __init__(self, server: socket.socket, secret: str, world_size: int) -> None:
        self.inside: dict[int, tuple[socket.socket, bytes]] = {}
        self._server = server
        self._secret = secret
        self._world_size = world_size
        self._callers: list[Caller] = []  # who came first is first

    def admit(self, within_s: float) -> None:
        """Let ranks in until all are there, or the time is over."""
        self._server.setblocking(False)
        deadline_s = time.monotonic() + within_s
        try:
            while self._is_open(deadline_s):
                self._serve(min(deadline_s - time.monotonic(), 1.0))
        finally:
            for caller in list(self._callers):
                self._send_away(caller)

    def _is_open(self, deadline_s: float) -> bool:
        complete = len(self.inside) == self._world_size - 1
        return not complete and time.monotonic() < deadline_s

    def _serve(self, wait_s: float) -> None:
        with selectors.DefaultSelector() as selector:
            for caller in self._callers:
                selector.register(caller, selectors.EVENT_READ)
            selector.register(self._server, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(max(wait_s, 0.0))]
        for caller in (each for each in ready if isinstance(each, Caller)):
            if not caller.listen():
                self._send_away(caller)
            elif b"\n" in caller.said:
                self._let_in(caller)
        if self._server in ready:
            self._open()
        self._make_room()

    def _open(self) -> None:
        with suppress(OSError):  # they are gone again
            connection, _ = self._server.accept()
            connection.setblocking(False)
            self._callers.append(Caller(connection, time.monotonic()))

    def _let_in(self, caller: Caller) -> None:
        rank = caller.rank(self._secret, self._world_size)
        if rank is None or rank in self.inside:
            self._send_away(caller)
        else:
            self._callers.remove(caller)
            after = caller.said.partition(b"\n")[2]
            self.inside[rank] = caller.connection, after

    def _make_room(self) -> None:
        """Send away who is silent for too long, and the first where they are many."""
        latest_s = time.monotonic() - HELLO_S
        too_many = len(self._callers) - _AT_THE_DOOR
        for index, caller in enumerate(list(self._callers)):
            if caller.came_s < latest_s or index < too_many:
                self._send_away(caller)

    def _send_away(self, caller: Caller) -> None:
        self._callers.remove(caller)
        caller.connection.close()
