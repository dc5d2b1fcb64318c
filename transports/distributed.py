"""Gloo and NCCL through torch.distributed.

Gloo stages what is on a GPU in main memory itself, but for messages between two ranks,
whose memory it takes for the host's; those are staged here.
"""

from __future__ import annotations

import json
import os
import pickle
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from comm_plan.errors import (
    CollectiveError,
    CommPlanError,
    MismatchError,
    PeerError,
    RunError,
    WorkloadError,
    one_line,
)
from comm_plan.transports import event_loop, watch
from comm_plan.transports.backends import Joining
from comm_plan.transports.base import Reduction, Transport
from comm_plan.transports.links import address_of_rank_0, reachable_address
from comm_plan.transports.liveness import Liveness
from comm_plan.transports.ranks import Place
from comm_plan.transports.rendezvous import rendezvous
from comm_plan.transports.settings import debugging, difference
from comm_plan.transports.staging import on_cpu
from comm_plan.transports.watch import Watch

_OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}

# torch 2.13 renamed both and warns at the old names.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


_held: deque[tuple[dist.Work, int]] = deque(maxlen=32)
"""What has moved the last objects, and their bytes. To destroy a group is to wait for
gloo's threads with Python's lock held, and one of them may be about to give up the last
reference to the tensors, which takes the lock: so it is not the last, even of a thread
that has had no core for some collectives. Tensors of other collectives are given up
before, as operations in between let go of the lock."""

HELD_NBYTES, LAST_HELD = 2**20, 4
"""So much is held at most, or, if they are larger, as checkpoints are, so many."""

_HEARD_S = 0.01  # how often rank 0 looks whether the others have heard it


class TorchTransport(Transport):
    """Collectives of one torch.distributed process group over all ranks.

    Args:
        group: the process group; None: the default one, which must be initialised.
        device: where this rank's tensors live; None: CPU for gloo, the current CUDA
            device for NCCL.
        timeout_s: after so many seconds without an end a collective fails. It applies
            to groups made by :meth:`duplicate`. None: the group's own.
        owns_group: whether :meth:`close` destroys the group.
        watch: knows who is to blame when a collective fails; None: nobody does.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        device: torch.device | None = None,
        timeout_s: float | None = None,
        owns_group: bool = False,
        watch: Watch | None = None,
    ) -> None:
        self._group = group
        self._watch = watch
        self._owns_group = owns_group
        self.backend = _backend(group, device)
        if self.backend == "gloo":
            event_loop.let_others_finish()
        self.rank = dist.get_rank(group)
        self._in_world = tuple(dist.get_process_group_ranks(group))
        self.world_size = dist.get_world_size(group)
        if device is None:
            device = torch.device("cpu")
            if self.backend == "nccl":
                device = torch.device("cuda", torch.cuda.current_device())
        self.device = device
        self._timeout = (
            _timeout_of(group, device)
            if timeout_s is None
            else timedelta(seconds=timeout_s)
        )

    def all_reduce(self, tensor: torch.Tensor, operation: Reduction = "sum") -> None:
        """Reduce in place; gloo sums along a ring."""
        with _named("all-reduce"):
            dist.all_reduce(tensor, op=_OPERATIONS[operation], group=self._group)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Gather equal lengths."""
        gathered = tensor.new_empty(self.world_size * tensor.numel())
        with _named("all-gather"):
            _all_gather(gathered, tensor, group=self._group)
        return gathered.view(self.world_size, -1)

    def all_gather_unequal(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Gather the lengths, then messages padded to the longest.

        On a limited link padding costs volume but little time: the longest message
        has to pass P - 1 links anyway. Short messages pay for a second collective. In
        return, what was measured for :meth:`all_gather` predicts this call too.
        """
        return _unequal(tensor, self.all_gather)

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum and scatter."""
        part = tensor.new_empty(tensor.numel() // self.world_size)
        with _named("reduce-scatter"):
            _reduce_scatter(part, tensor, group=self._group)
        return part

    def all_to_all(self, tensor: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Exchange the parts."""
        received = tensor.new_empty(self.world_size, counts[self.rank])
        with _named("all-to-all"):
            dist.all_to_all_single(
                received.view(-1),
                tensor,
                [counts[self.rank]] * self.world_size,
                list(counts),
                group=self._group,
            )
        return received

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Broadcast in place."""
        with _named("broadcast"):
            dist.broadcast(tensor, src=self._in_world[root], group=self._group)

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send, blocking."""
        with _named(f"send to rank {to}"):
            self._pass(self._outgoing(tensor, to))

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """Receive, blocking."""
        with (
            _named(f"receive from rank {source}"),
            self._filled(tensor) as buffer,
        ):
            self._pass(self._incoming(buffer, source))

    def exchange(
        self, tensor: torch.Tensor, to: int, received: torch.Tensor, source: int
    ) -> None:
        """Send and receive at once."""
        with (
            _named(f"exchange with ranks {to} and {source}"),
            self._filled(received) as buffer,
        ):
            self._pass(self._outgoing(tensor, to), self._incoming(buffer, source))

    def _pass(self, *messages: dist.P2POp) -> None:
        """Send and receive; by a batch, NCCL takes the group's own communicator."""
        for work in dist.batch_isend_irecv(list(messages)):
            work.wait()

    def _outgoing(self, tensor: torch.Tensor, to: int) -> dist.P2POp:
        sent = tensor.cpu() if self.backend == "gloo" else tensor
        return dist.P2POp(dist.isend, sent, self._in_world[to], self._group)

    def _incoming(self, buffer: torch.Tensor, source: int) -> dist.P2POp:
        return dist.P2POp(dist.irecv, buffer, self._in_world[source], self._group)

    def _filled(self, tensor: torch.Tensor) -> AbstractContextManager[torch.Tensor]:
        """Lend what the engine writes a message to that is to be in ``tensor``."""
        if self.backend == "gloo":
            return on_cpu(tensor, is_read=False)
        return nullcontext(tensor)

    def barrier(self) -> None:
        """Wait for all ranks."""
        with _named("barrier"):
            dist.barrier(
                group=self._group,
                device_ids=[self.device.index] if self.backend == "nccl" else None,
            )

    def gather_objects(self, value: Any) -> list[Any]:
        """Gather pickles."""
        own = self._pickled(value)
        with _named("gather of objects"), self._on_device():
            return list(map(_unpickled, _unequal(own, self._held_rows)))

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Broadcast a pickle."""
        own = self._pickled(value if self.rank == root else None)
        length = own.new_tensor([own.numel()], dtype=torch.int64)
        with _named("broadcast of an object"), self._on_device():
            self._held_broadcast(length, root)
            message = own if self.rank == root else own.new_empty(int(length.item()))
            self._held_broadcast(message, root)
            return value if self.rank == root else _unpickled(message)

    def _pickled(self, value: Any) -> torch.Tensor:
        """Return a pickle of ``value`` where the engine reads it, [n] uint8."""
        pickled = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        return pickled.to(self.device) if self.backend == "nccl" else pickled

    def _held_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        gathered = tensor.new_empty(self.world_size * tensor.numel())
        work = _all_gather(gathered, tensor, group=self._group, async_op=True)
        _hold(work, gathered)
        return gathered.view(self.world_size, -1)

    def _held_broadcast(self, tensor: torch.Tensor, root: int) -> None:
        source = self._in_world[root]
        work = dist.broadcast(tensor, src=source, group=self._group, async_op=True)
        _hold(work, tensor)

    def duplicate(self) -> TorchTransport:
        """Make a new process group of the same ranks and backend.

        One of some ranks only is made without the others, under a name that torch
        would give again, with the addresses of the first, once it is destroyed. So it
        stays until all groups are.
        """
        some = self.world_size < dist.get_world_size()
        with _named("making a process group"), _without_the_others(some):
            group = dist.new_group(
                list(self._in_world) if some else None,
                backend=self.backend,
                timeout=self._timeout,
                use_local_synchronization=some,
            )
        return TorchTransport(
            group,
            device=self.device,
            timeout_s=self._timeout.total_seconds(),
            owns_group=not some,
            watch=self._watch,
        )

    def _on_device(self) -> AbstractContextManager[Any]:
        """Let NCCL move objects through this rank's device, not the current one."""
        if self.backend == "nccl":
            return torch.cuda.device(self.device)
        return nullcontext()

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """The group that was given."""
        return self._group

    def explain(self, error: CollectiveError) -> RunError:
        """Ask the watch."""
        return error if self._watch is None else self._watch.explain(error)

    def watched(self) -> TorchTransport:
        """Return the transport with the watch over torch's default process group.

        The first call for that group is a collective one, of all its ranks. A group of
        some ranks is watched over only if there is a watch already.
        """
        world = dist.group.WORLD
        self._watch = watch.current(world)
        if self._watch is None and 1 < self.world_size == dist.get_world_size():
            address = address_of_rank_0(self, os.environ.get("MASTER_ADDR"))
            self._watch = watch.begin(self, world, address=address)
        return self

    def close(self) -> None:
        """Destroy the process group if this transport made it, and it is still there.

        It is not once torch's default one was destroyed, and all others with it.
        """
        if not self._owns_group:
            return
        if self.backend == "nccl" and sys.exc_info()[1] is not None:
            return  # the others are in a collective, and destroying waits for them
        try:
            dist.destroy_process_group(self._group)
        except ValueError as error:
            if str(error) != "Invalid process group specified":
                raise


@contextmanager
def join(joining: Joining) -> Iterator[Transport]:
    """Join the run through a process group, watched over by all ranks.

    Raises:
        PeerError: not all ranks came, or one of them died or failed in the block.
        MismatchError: ranks let torch debug differently.
    """
    host, port = rendezvous(joining.here)
    with _process_group(joining, host, port):
        transport = TorchTransport(device=joining.device, timeout_s=joining.timeout_s)
        with _watched(transport, host, joining.patience_s, joining.report):
            yield transport


def joined(here: Place, device: torch.device | None = None) -> Transport | None:
    """Return the transport of torch's default process group, if there is one.

    The watch over its ranks begins with the first call, of all of them.
    """
    return over(None, device) if dist.is_initialized() else None


def over(
    group: dist.ProcessGroup | None, device: torch.device | None
) -> TorchTransport:
    """Return the transport of a group of torch, watched over.

    Args:
        group: None: the default one.
        device: where the tensors live, if it is known; where the group does not serve
            it, those live where it does.
    """
    served = {"cpu", "cuda"} & _engines(group).keys()
    known = device is not None and device.type in served
    return TorchTransport(group, device=device if known else None).watched()


@contextmanager
def _process_group(joining: Joining, host: str, port: int) -> Iterator[None]:
    here = joining.here
    timeout = timedelta(seconds=joining.timeout_s)
    try:
        store = fresh(_meet(here, host, port, timeout), here, timeout)
        _check_debugging(dist.PrefixStore("comm_plan", store), here)
        dist.init_process_group(
            joining.backend,
            store=dist.PrefixStore("default_pg", store),
            rank=here.rank,
            world_size=here.world_size,
            timeout=timeout,
            device_id=joining.device if joining.backend == "nccl" else None,
        )
    except RuntimeError as error:
        detail = one_line(str(error), 300)
        raise PeerError(
            f"rank {here.rank} did not meet all {here.world_size} ranks at {host} port "
            f"{port}: check that all were started and reach this address ({detail})"
        ) from error
    try:
        yield
    except BaseException:
        if joining.backend == "nccl":
            raise  # destroying would wait for the collective that never ends
        dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def _meet(here: Place, host: str, port: int, timeout: timedelta) -> dist.Store:
    """Return the store that rank 0, or torchrun, keeps at ``host``."""
    where = f"tcp://{f'[{host}]' if ':' in host else host}:{port}"
    store: dist.Store
    (store, _, _) = next(
        dist.rendezvous(where, here.rank, here.world_size, timeout=timeout)
    )
    store.set_timeout(timeout)
    return store


def fresh(store: dist.Store, here: Place, timeout: timedelta) -> dist.Store:
    """Return a part of ``store`` that holds only what the ranks of this run say.

    torchrun keeps one store over its restarts, with what ranks said that are gone:
    whoever comes first would take it for what the others say now. So rank 0 answers
    each word that it finds, until all ranks have heard the answer to their own.

    Args:
        store: where the ranks meet.
        here: this rank.
        timeout: how long rank 0 waits for the others.

    Raises:
        RuntimeError: not all ranks came.
    """
    word = secrets.token_hex(16)
    if here.rank > 0:
        store.set(f"came/{here.rank}", word)
        run = store.get(f"answer/{word}").decode()
        store.set(f"{run}/heard/{here.rank}", "")
        return dist.PrefixStore(run, store)
    deadline_s = time.monotonic() + timeout.total_seconds()
    awaited = list(range(1, here.world_size))
    while awaited:
        for rank in awaited:
            store.set(f"answer/{store.get(f'came/{rank}').decode()}", word)
        time.sleep(_HEARD_S)
        awaited = [r for r in awaited if not store.check([f"{word}/heard/{r}"])]
        if awaited and time.monotonic() > deadline_s:
            raise RuntimeError(f"rank {awaited[0]} has not come")
    return dist.PrefixStore(word, store)


def _check_debugging(store: dist.Store, here: Place) -> None:
    """Compare what makes torch wait for more messages before any can be exchanged.

    Raises:
        MismatchError: on every rank, where it differs on some.
    """
    store.set(f"given/{here.rank}", json.dumps(debugging()))
    if here.rank == 0:
        given = [store.get(f"given/{rank}") for rank in range(here.world_size)]
        store.set("difference", difference([json.loads(one) for one in given]) or "")
    found = store.get("difference").decode()
    if not found:
        return
    if here.rank == 0:  # with which the store ends
        store.wait([f"heard/{rank}" for rank in range(1, here.world_size)])
    else:
        store.set(f"heard/{here.rank}", "")
    raise MismatchError(found)


@contextmanager
def _watched(
    transport: TorchTransport,
    host: str,
    patience_s: float,
    report: Callable[[BaseException], None],
) -> Iterator[Transport]:
    liveness = Liveness(
        transport,
        address=reachable_address(host),
        report=report,
        patience_s=patience_s,
    )
    transport.liveness = liveness
    try:
        yield transport
        transport.barrier()  # rank 0 keeps torch's store: it must not leave first
    except CollectiveError as error:
        raise liveness.explain(error) from error
    except BaseException as error:
        cause = error.__cause__ if isinstance(error, WorkloadError) else error
        if _is_from_a_users_collective(cause):
            failed = CollectiveError(one_line(str(cause)))
            raise liveness.explain(failed) from error
        liveness.fail(str(error) or type(error).__name__)
        raise
    finally:
        liveness.close()


def _is_from_a_users_collective(cause: BaseException | None) -> bool:
    """Return whether a call of torch.distributed failed that is not of a transport."""
    return (
        cause is not None
        and not isinstance(cause, CommPlanError)
        and watch.is_from_a_collective(cause)
    )


def _backend(group: dist.ProcessGroup | None, device: torch.device | None) -> str:
    """Return the engine that serves ``device`` in ``group``.

    A group made without naming a backend has one for each type of device.
    """
    engines = _engines(group)
    preferred = device.type if device else "cuda" if "nccl" in engines.values() else ""
    return engines.get(preferred, engines.get("cpu", dist.get_backend(group)))


def _engines(group: dist.ProcessGroup | None) -> dict[str, str]:
    """Return the engine for each type of device that ``group`` serves."""
    return dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))


def _timeout_of(group: dist.ProcessGroup | None, device: torch.device) -> timedelta:
    """Return after how long the collectives of ``group`` fail.

    PyTorch has no public way to ask.
    """
    whole = group or dist.group.WORLD
    assert whole is not None
    timeout: timedelta = whole._get_backend(device).options._timeout
    return timeout


@contextmanager
def _without_the_others(some: bool) -> Iterator[None]:
    """Let a group of ``some`` ranks be made without the others.

    Of a default group that is bound to a device torch would split it off, in which all
    ranks have to take part (its issue 129965).
    """
    world = dist.group.WORLD
    bound = None if world is None else world.bound_device_id
    if not some or bound is None:
        yield
        return
    assert world is not None
    world.bound_device_id = None
    try:
        yield
    finally:
        world.bound_device_id = bound


def _unequal(
    tensor: torch.Tensor, all_gather: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    """Return every rank's tensor, by ``all_gather`` of the lengths, then of all."""
    length = tensor.new_full((1,), tensor.numel(), dtype=torch.int64)
    lengths: list[int] = all_gather(length).flatten().tolist()
    longest = max(lengths)
    if tensor.numel() < longest:
        tensor = torch.nn.functional.pad(tensor, (0, longest - tensor.numel()))
    rows = all_gather(tensor)
    return [row[:n] for row, n in zip(rows, lengths, strict=True)]


def _hold(work: dist.Work | None, moved: torch.Tensor) -> None:
    """Wait for ``work``, which has ``moved`` a tensor, and keep it for a while."""
    assert work is not None
    work.wait()
    _held.append((work, moved.nbytes))
    while len(_held) > LAST_HELD and sum(n for _, n in _held) > HELD_NBYTES:
        _held.popleft()


def _unpickled(tensor: torch.Tensor) -> Any:
    return pickle.loads(tensor.cpu().numpy().tobytes())


@contextmanager
def _named(operation: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        detail = one_line(str(error)) or type(error).__name__
        raise CollectiveError(f"{operation} failed: {detail}") from error
