"""Many ranks for tests: on threads within milliseconds, and on real engines.

``run_ranks`` runs a function on P threads over a :class:`ThreadTransport`, which is
stricter than the engines: calls that do not match, sums of int8 that overflow and sends
that nobody receives are errors instead of garbage or a hang.

``real_ranks`` starts 9 processes once (gloo, also with a GPU that they share: forked;
MPI: by mpirun) and runs functions on the first P of them, so that every P from 1 to 9
costs one start.
"""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any, TypeVar

import torch

from comm_plan.errors import CollectiveError
from comm_plan.transports.base import Reduction, Transport

MAX_RANKS = 9
TIMEOUT_S = 200.0  # of a machine that is busy with other things

Result = TypeVar("Result")

torch.set_num_threads(1)  # the ranks are the parallelism


def run_ranks(
    world_size: int, function: Callable[..., Result], *arguments: Any
) -> list[Result]:
    """Return ``function(transport, *arguments)`` of every rank, each on its thread.

    Raises:
        Exception: the first that any rank raised; the others are stopped.
    """
    group = _Group(world_size)
    results: list[Any] = [None] * world_size
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = function(ThreadTransport(group, rank), *arguments)
        except BaseException as error:
            failures.append(error)
            group.abort()

    threads = [threading.Thread(target=run, args=(r,)) for r in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


class _Group:
    """What the ranks of one communicator share."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.deposits: list[Any] = [None] * world_size
        self.barrier = threading.Barrier(world_size)
        self.mailboxes: dict[tuple[int, int], torch.Tensor] = {}
        self.mail = threading.Condition()
        self.broken = False
        self.children: list[_Group] = []

    def abort(self) -> None:
        """Wake every rank that waits; all later calls fail."""
        self.barrier.abort()
        with self.mail:
            self.broken = True
            self.mail.notify_all()
        for child in self.children:
            child.abort()

    def wait_for_mail(self, condition: Callable[[], bool]) -> None:
        """Wait, holding ``mail``, until ``condition`` holds."""
        arrived = self.mail.wait_for(lambda: self.broken or condition(), TIMEOUT_S)
        if self.broken or not arrived:
            raise CollectiveError("a partner failed or never came")


class ThreadTransport(Transport):
    """One rank of a group of threads."""

    backend = "thread"

    def __init__(self, group: _Group, rank: int) -> None:
        """Be ``rank`` of ``group``."""
        self._group = group
        self.rank = rank
        self.world_size = group.world_size
        self.device = torch.device("cpu")

    def _exchange(self, value: Any) -> list[Any]:
        self._group.deposits[self.rank] = value
        self.barrier()
        values = list(self._group.deposits)
        self.barrier()
        return values

    def _tensors(
        self, call: str, tensor: torch.Tensor, *, equal: bool = True
    ) -> list[torch.Tensor]:
        """Exchange copies, and check that all ranks make the same call."""
        assert tensor.ndim == 1 and tensor.is_contiguous(), "a tensor is not flat"
        length = tensor.numel() if equal else None
        calls = self._exchange(((call, tensor.dtype, length), tensor.clone()))
        if len({made for made, _ in calls}) > 1:
            raise CollectiveError(f"ranks disagree: {[made for made, _ in calls]}")
        return [sent.clone() for _, sent in calls]

    def all_reduce(self, tensor: torch.Tensor, operation: Reduction = "sum") -> None:
        """Reduce in rank order."""
        parts = self._tensors(f"all-reduce {operation}", tensor)
        if operation == "max":
            tensor.copy_(torch.stack(parts).amax(0))
        else:
            tensor.copy_(_sum(parts))

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Stack the copies."""
        return torch.stack(self._tensors("all-gather", tensor))

    def all_gather_unequal(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """List the copies."""
        return self._tensors("all-gather unequal", tensor, equal=False)

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """Take this rank's part of the sum."""
        total = _sum(self._tensors("reduce-scatter", tensor))
        return total.view(self.world_size, -1)[self.rank].clone()

    def all_to_all(self, tensor: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Take this rank's part of each."""
        every = self._tensors(f"all-to-all of {list(counts)}", tensor)
        return torch.stack([sent.split(list(counts))[self.rank] for sent in every])

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Copy the root's."""
        tensor.copy_(self._tensors(f"broadcast from {root}", tensor)[root])

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Return once it was received: no engine promises to buffer."""
        group, key = self._group, (self.rank, to)
        with group.mail:
            group.mailboxes[key] = tensor.clone()
            group.mail.notify_all()
            group.wait_for_mail(lambda: key not in group.mailboxes)

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """Wait for the matching send."""
        group, key = self._group, (source, self.rank)
        with group.mail:
            group.wait_for_mail(lambda: key in group.mailboxes)
            sent = group.mailboxes.pop(key)
            group.mail.notify_all()
        if (sent.dtype, sent.shape) != (tensor.dtype, tensor.shape):
            raise CollectiveError(f"sent {sent.shape}, received {tensor.shape}")
        tensor.copy_(sent)

    def exchange(
        self, tensor: torch.Tensor, to: int, received: torch.Tensor, source: int
    ) -> None:
        """Post, receive, and return once the own was received."""
        group, key = self._group, (self.rank, to)
        with group.mail:
            group.mailboxes[key] = tensor.clone()
            group.mail.notify_all()
        self.receive(received, source)
        with group.mail:
            group.wait_for_mail(lambda: key not in group.mailboxes)

    def barrier(self) -> None:
        """Wait for all."""
        try:
            self._group.barrier.wait(TIMEOUT_S)
        except threading.BrokenBarrierError:
            raise CollectiveError("another rank failed or never came") from None

    def gather_objects(self, value: Any) -> list[Any]:
        """Exchange pickles."""
        return [pickle.loads(p) for p in self._exchange(pickle.dumps(value))]

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Take the root's pickle."""
        return self.gather_objects(value)[root]

    def duplicate(self) -> ThreadTransport:
        """Share a new group that rank 0 makes; it fails with this one."""
        child = _Group(self.world_size) if self.rank == 0 else None
        shared = self._exchange(child)[0]
        if self.rank == 0:
            self._group.children.append(shared)
        return ThreadTransport(shared, self.rank)

    def close(self) -> None:
        """Nothing to give back."""


def _sum(parts: list[torch.Tensor]) -> torch.Tensor:
    if parts[0].dtype == torch.int8:
        exact = torch.stack(parts).sum(0)
        if exact.numel() and int(exact.abs().max()) > 127:
            raise CollectiveError("an int8 sum left [-127, 127]")
    return functools.reduce(torch.add, parts)


class RealRanks:
    """Processes of a real engine that wait for functions to run.

    Args:
        engine: ``gloo``, ``gloo-cuda`` (they share one GPU) or ``mpi``.
    """

    def __init__(self, engine: str) -> None:
        """Start them, and wait until all have called."""
        self._engine = engine
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        address = f"{self._folder.name}/parent"
        with Listener(address, "AF_UNIX") as listener:
            self._launcher = subprocess.Popen(
                [*_LAUNCH[engine](), __spec__.name, engine, self._folder.name],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            connections = [listener.accept() for _ in range(MAX_RANKS)]
        self._ranks = dict(sorted((c.recv(), c) for c in connections))

    def run(
        self, world_size: int, function: Callable[..., Result], *arguments: Any
    ) -> list[Result]:
        """Return ``function(transport, *arguments)`` of the first ``world_size`` ranks.

        Args:
            world_size: how many ranks, at most ``MAX_RANKS``.
            function: importable by name from the ranks.
            arguments: picklable.

        Raises:
            RuntimeError: a rank raised or went silent; it holds their tracebacks. All
                ranks are ended, :func:`real_ranks` then starts new ones.
        """
        waiting = {self._ranks[rank]: rank for rank in range(world_size)}
        call = pickle.dumps((world_size, function, arguments))
        for connection in self._ranks.values():
            with suppress(OSError):  # of a dead one: its answer is the end of file
                connection.send_bytes(call)
        results: dict[int, Any] = {}
        failures: list[str] = []
        while waiting and not failures:
            ready = wait(list(waiting), TIMEOUT_S)
            if not ready:
                failures.append(f"ranks {sorted(waiting.values())} went silent")
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                try:
                    failure, results[rank] = pickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    failure = "it died"
                if failure:
                    failures.append(f"rank {rank}: {failure}")
        if failures:
            self.close()
            del _STARTED[self._engine]
            raise RuntimeError("\n".join(failures))
        return [results[rank] for rank in range(world_size)]

    def close(self) -> None:
        """End the processes."""
        for connection in self._ranks.values():
            connection.close()
        try:
            self._launcher.wait(10)
        except subprocess.TimeoutExpired:
            self._launcher.terminate()
            self._launcher.wait()
        self._folder.cleanup()


_STARTED: dict[str, RealRanks] = {}


def real_ranks(engine: str) -> RealRanks:
    """Return the ranks of ``engine``, started on first use and ended at exit."""
    if engine not in _STARTED:
        _STARTED[engine] = RealRanks(engine)
        atexit.register(_STARTED[engine].close)
    return _STARTED[engine]


def mpirun() -> str | None:
    """Return the path of mpirun, which may lie beside the interpreter."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("mpirun", path=os.pathsep.join([beside, os.environ["PATH"]]))


_LAUNCH: dict[str, Callable[[], list[str]]] = {
    "gloo": lambda: [sys.executable, "-m"],
    "gloo-cuda": lambda: [sys.executable, "-m"],
    "mpi": lambda: [
        str(mpirun()),
        *("--allow-run-as-root", "--oversubscribe", "-n", str(MAX_RANKS)),
        *(sys.executable, "-m"),
    ],
}


def _serve(connection: Connection, transports: dict[int, Transport]) -> None:
    """Run what the parent sends until it hangs up.

    Args:
        connection: to the parent.
        transports: over the first P ranks, by P; absent where this rank is not one.
    """
    while True:
        try:
            world_size, function, arguments = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):
            return
        if world_size not in transports:
            continue
        try:
            answer = (None, function(transports[world_size], *arguments))
        except Exception:
            answer = (traceback.format_exc(), None)
        connection.send_bytes(pickle.dumps(answer))


def _hello(folder: str, rank: int) -> Connection:
    connection = Client(f"{folder}/parent", "AF_UNIX")
    connection.send(rank)
    return connection


def _gloo_rank(folder: str, rank: int, device: str) -> None:
    import torch.distributed as dist

    from comm_plan.transports.distributed import TorchTransport

    placed_on = torch.device(device)
    timeout = timedelta(seconds=TIMEOUT_S / 2)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=MAX_RANKS,
        timeout=timeout,
    )
    groups = [
        dist.new_group(list(range(size)), timeout=timeout)
        for size in range(1, MAX_RANKS + 1)
    ]
    transports: dict[int, Transport] = {
        size: TorchTransport(group, device=placed_on)
        for size, group in enumerate(groups, start=1)
        if rank < size
    }
    _serve(_hello(folder, rank), transports)


def _gloo_ranks(folder: str, device: str = "cpu") -> None:
    """Fork the ranks, so that all is imported once.

    On a GPU only PyTorch: a fork cannot use one that was looked at before it.
    """
    if device == "cpu":
        import_module("comm_plan.tests.support.imported")
    children = []
    for rank in range(MAX_RANKS):
        child = os.fork()
        if child == 0:
            try:
                _gloo_rank(folder, rank, device)
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def _mpi_rank(folder: str) -> None:
    from mpi4py import MPI

    from comm_plan.transports import mpi

    mpi.PIECE_NBYTES = 16  # so that most broadcasts are of several pieces
    rank = MPI.COMM_WORLD.Get_rank()
    transports: dict[int, Transport] = {}
    for size in range(1, MAX_RANKS + 1):
        part = MPI.COMM_WORLD.Split(0 if rank < size else MPI.UNDEFINED, rank)
        if part != MPI.COMM_NULL:
            transports[size] = mpi.MpiTransport(part)
    _serve(_hello(folder, rank), transports)


if __name__ == "__main__":
    _MAIN = {
        "gloo": _gloo_ranks,
        "gloo-cuda": functools.partial(_gloo_ranks, device="cuda:0"),
        "mpi": _mpi_rank,
    }
    _MAIN[sys.argv[1]](sys.argv[2])
