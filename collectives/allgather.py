"""All-gather: every rank receives every message, and decodes them all.

For compressors whose messages do not add up: indices, packed trits, words of VGC. The
traffic grows with P, in exchange nothing is decided on the way (TopKAllReduce of the
gTop-k paper, table I).

A message travels as one byte buffer. Where its length depends on the data, the buffers
are of unequal lengths and start with a header: one int64 for each tensor but the last,
its bytes; what is left is the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from comm_plan.collectives.collective import Collective
from comm_plan.collectives.costs import Terms, rounds
from comm_plan.collectives.message import Codec, pack, unpack
from comm_plan.collectives.operation import Operation
from comm_plan.plans.compression import FLOAT32_NBYTES
from comm_plan.transports.base import Transport
from comm_plan.transports.message import Message

if TYPE_CHECKING:
    import torch


def aggregate(transport: Transport, codec: Codec) -> int:
    """Gather the messages of all ranks and give them to ``codec`` in rank order.

    Returns:
        Bytes that this rank contributed: its message and, if there is one, its header.

    Raises:
        CollectiveError: the all-gather failed or timed out.
    """
    codec.agree(transport)
    message = codec.encode()
    if codec.variable_length:
        messages, nbytes = _gather_unequal(transport, message)
    else:
        messages, nbytes = _gather_equal(transport, message)
    codec.decode(messages)
    return nbytes


def _gather_equal(transport: Transport, message: Message) -> tuple[list[Message], int]:
    dtypes = [tensor.dtype for tensor in message]
    sizes = [tensor.nbytes for tensor in message]
    buffer = pack(message)
    rows = transport.all_gather(buffer)
    return [unpack(row, dtypes, sizes) for row in rows], buffer.numel()


def _gather_unequal(
    transport: Transport, message: Message
) -> tuple[list[Message], int]:
    import torch

    dtypes = [tensor.dtype for tensor in message]
    sizes = [tensor.nbytes for tensor in message[:-1]]
    device = message[0].device
    header = torch.tensor(
        sizes, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda"
    ).to(device, non_blocking=True)
    buffer = pack((header, *message)) if sizes else pack(message)
    rows = transport.all_gather_unequal(buffer)
    head = header.nbytes  # of every rank, read at once: each reading waits for a GPU
    heads = torch.cat([row[:head] for row in rows]).view(torch.int64)
    messages = [
        _read(row[head:], dtypes, of_rank)
        for row, of_rank in zip(rows, heads.view(len(rows), -1).tolist(), strict=True)
    ]
    return messages, buffer.numel()


def _read(
    body: torch.Tensor, dtypes: list[torch.dtype], sizes: Sequence[int]
) -> Message:
    """Split the tensors of one rank's buffer, all but the last of so many bytes."""
    return unpack(body, dtypes, [*sizes, body.numel() - sum(sizes)])


def ring(world_size: int) -> Terms:
    """(P-1) alpha + (P-1)/P n beta, n the gathered total."""
    return Terms(world_size - 1, (world_size - 1) / world_size)


def doubling(world_size: int) -> Terms:
    """Lg P alpha + (P-1)/P n beta, n the gathered total.

    Top-k by all-gather, ``lg P alpha + 2k(P-1) beta``, is this with n = 2kP elements.
    """
    return Terms(rounds(world_size), (world_size - 1) / world_size)


class AllGather(Operation):
    """Every rank: the parts of all ranks; ``nbytes`` is all of them."""

    @staticmethod
    def granularity(world_size: int) -> int:
        """Return one element for each rank."""
        return FLOAT32_NBYTES * world_size

    def prepare(self, nbytes: int) -> None:
        """Make this rank's part."""
        numbers = self.pattern(nbytes // self.transport.world_size)
        self.part = numbers + self.transport.rank

    def run(self) -> None:
        """Gather."""
        self.gathered = self.transport.all_gather(self.part)

    def is_right(self) -> bool:
        """Compare row r with the pattern plus r."""
        import torch

        self.run()
        ranks = torch.arange(self.transport.world_size, device=self.part.device)
        rows = self.part - self.transport.rank + ranks[:, None]
        return torch.equal(self.gathered, rows)


ALLGATHER = Collective(
    name="allgather",
    algorithms={"ring": ring, "doubling": doubling},
    bus_factor=lambda world_size: (world_size - 1) / world_size,
    gathers=True,
    sent_by_all=lambda world_size: world_size - 1,
    aggregation=aggregate,
    operation=AllGather,
    carries_flags=True,
)
