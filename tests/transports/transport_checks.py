"""What every transport has to do, as programs that ranks of a real engine run.

Each compares what came with the definition, computed from the inputs of all ranks,
which every rank can make. They return nothing: a rank that disagrees raises.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from comm_plan.transports.base import Transport

DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.uint8,
]
Check = Callable[[Transport, torch.dtype], None]


def made_by(
    rank: int, numel: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return the tensor [numel] of ``rank``: small whole numbers, sums are exact."""
    return ((torch.arange(numel, device=device) * 7 + rank * 3) % 11).to(dtype)


def inputs(transport: Transport, numel: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return the tensors of all ranks."""
    device = transport.device
    return [made_by(rank, numel, dtype, device) for rank in range(transport.world_size)]


def equal(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Require the same values, shape and dtype."""
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def all_reduce(transport: Transport, dtype: torch.dtype) -> None:
    """Sum and maximum, also of lengths that P does not divide."""
    for numel in (1, 13, 240):
        tensors = inputs(transport, numel, dtype)
        total = tensors[transport.rank].clone()
        transport.all_reduce(total)
        equal(total, sum(tensors[1:], tensors[0]))
        largest = tensors[transport.rank].clone()
        transport.all_reduce(largest, "max")
        equal(largest, torch.stack(tensors).amax(0))


def all_gather(transport: Transport, dtype: torch.dtype) -> None:
    """Rows by rank, also of no elements."""
    for numel in (5, 0):
        tensors = inputs(transport, numel, dtype)
        equal(transport.all_gather(tensors[transport.rank]), torch.stack(tensors))


def all_gather_unequal(transport: Transport, dtype: torch.dtype) -> None:
    """Messages by rank: growing, all equal, all but one empty, all empty."""
    ranks = range(transport.world_size)
    for lengths in (
        [3 * rank for rank in ranks],
        [4 for _ in ranks],
        [0 if rank else 6 for rank in ranks],
        [0 for _ in ranks],
    ):
        device = transport.device
        messages = [made_by(rank, lengths[rank], dtype, device) for rank in ranks]
        gathered = transport.all_gather_unequal(messages[transport.rank])
        assert len(gathered) == transport.world_size
        for got, sent in zip(gathered, messages, strict=True):
            equal(got, sent)


def reduce_scatter(transport: Transport, dtype: torch.dtype) -> None:
    """This rank's part of the sum."""
    tensors = inputs(transport, 4 * transport.world_size, dtype)
    part = transport.reduce_scatter(tensors[transport.rank])
    equal(part, sum(tensors[1:], tensors[0]).view(-1, 4)[transport.rank])


def all_to_all(transport: Transport, dtype: torch.dtype) -> None:
    """This rank's part of every rank's tensor: equal ones, growing ones, none."""
    rank, ranks = transport.rank, transport.world_size
    for counts in ([4] * ranks, [3 * r for r in range(ranks)], [0] * ranks):
        tensors = inputs(transport, sum(counts), dtype)
        got = transport.all_to_all(tensors[rank], counts)
        equal(got, torch.stack([t.split(counts)[rank] for t in tensors]))


def broadcast(transport: Transport, dtype: torch.dtype) -> None:
    """The root's tensor, of any root."""
    for root in (0, transport.world_size - 1):
        tensors = inputs(transport, 9, dtype)
        transport.broadcast(tensors[transport.rank], root)
        equal(tensors[transport.rank], made_by(root, 9, dtype, transport.device))


def point_to_point(transport: Transport, dtype: torch.dtype) -> None:
    """A message along the ranks, from the first to the last."""
    rank, device = transport.rank, transport.device
    if rank > 0:
        received = torch.zeros(6, dtype=dtype, device=device)
        transport.receive(received, rank - 1)
        equal(received, made_by(rank - 1, 6, dtype, device))
    if rank + 1 < transport.world_size:
        transport.send(made_by(rank, 6, dtype, device), rank + 1)


def exchange(transport: Transport, dtype: torch.dtype) -> None:
    """Round a ring of any length, by every distance; messages may be empty."""
    rank, world_size = transport.rank, transport.world_size
    device = transport.device
    for distance in range(1, world_size):
        to, source = (rank + distance) % world_size, (rank - distance) % world_size
        for numels in ([6] * world_size, [3 * r for r in range(world_size)]):
            received = torch.zeros(numels[source], dtype=dtype, device=device)
            tensor = made_by(rank, numels[rank], dtype, device)
            transport.exchange(tensor, to, received, source)
            equal(received, made_by(source, numels[source], dtype, device))


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        all_reduce,
        all_gather,
        all_gather_unequal,
        reduce_scatter,
        all_to_all,
        broadcast,
        point_to_point,
        exchange,
    )
}


def every_dtype(transport: Transport, check: str) -> None:
    """Run a check for all dtypes, any warning being an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in DTYPES:
            CHECKS[check](transport, dtype)


def objects(transport: Transport) -> None:
    """Pickles of different sizes arrive by rank and from any root."""
    ranks = range(transport.world_size)
    mine = {"rank": transport.rank, "list": [None] * transport.rank}
    assert transport.gather_objects(mine) == [
        {"rank": rank, "list": [None] * rank} for rank in ranks
    ]
    last = transport.world_size - 1
    assert transport.broadcast_object(transport.rank, root=last) == last
    assert transport.broadcast_object({"long": [transport.rank] * 99}, root=last) == {
        "long": [last] * 99
    }
    transport.barrier()


def two_channels(transport: Transport) -> None:
    """A duplicate in a thread of its own does not mix with the original."""
    other = transport.duplicate()
    failures: list[BaseException] = []

    def reduce_often(channel: Transport, scale: float) -> None:
        try:
            for i in range(50):
                tensor = torch.full((100,), scale * (i + 1), device=channel.device)
                channel.all_reduce(tensor)
                expected = scale * (i + 1) * channel.world_size
                equal(tensor, torch.full_like(tensor, expected))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=reduce_often, args=(other, 1.0))
    thread.start()
    reduce_often(transport, 1024.0)
    thread.join()
    assert not failures, failures
    other.close()


def inputs_are_kept(transport: Transport) -> None:
    """Only what is documented as in place changes its argument."""
    tensor = inputs(transport, 4 * transport.world_size, torch.float16)[transport.rank]
    kept = tensor.clone()
    transport.all_gather(tensor)
    transport.all_gather_unequal(tensor)
    transport.reduce_scatter(tensor)
    transport.all_to_all(tensor, [4] * transport.world_size)
    equal(tensor, kept)


def loops_of(transport: Transport) -> set[int]:
    """Return the scheduling policies of this process's event loops, with a new one."""
    copy = transport.duplicate()
    copy.barrier()  # a rank that left would break the connecting of a slower one
    copy.close()
    policies = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # one that has just ended
            if (thread / "comm").read_text().startswith("gloo_tcp_loop"):
                policies.add(os.sched_getscheduler(int(thread.name)))
    return policies
