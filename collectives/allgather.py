"""All-gather: every rank receives every message, and decodes them all.

For compressors whose messages do not add up: indices, packed trits, words of VGC. The
traffic grows with P, in exchange nothing is decided on the way (TopKAllReduce of the
gTop-k paper, table I).

A message travels as one byte buffer. Where its length depends on the data, the buffers
are of unequal lengths and start with a header: one int64 for each tensor but the last,
its bytes; what is left is the last.
"""

from __future__ import annotations

import torch

from comm_plan.collectives.message import Codec, Message, pack, unpack
from comm_plan.transports.base import Transport

_HEADER = torch.int64


def aggregate(transport: Transport, codec: Codec) -> int:
    """Gather the messages of all ranks and give them to ``codec`` in rank order.

    Returns:
        Bytes that this rank contributed: its message and, if there is one, its header.

    Raises:
        CollectiveError: the all-gather failed or timed out.
    """
    codec.agree(lambda tensor: transport.all_reduce(tensor, "max"))
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
    dtypes = [tensor.dtype for tensor in message]
    sizes = [tensor.nbytes for tensor in message[:-1]]
    header = torch.tensor(sizes, dtype=_HEADER, device=message[0].device)
    buffer = pack((header, *message)) if sizes else pack(message)
    rows = transport.all_gather_unequal(buffer)
    return [_read(row, dtypes) for row in rows], buffer.numel()


def _read(row: torch.Tensor, dtypes: list[torch.dtype]) -> Message:
    """Split the header and the tensors of one rank's buffer."""
    head = (len(dtypes) - 1) * _HEADER.itemsize
    (header,) = unpack(row[:head], [_HEADER], [head])
    sizes = header.tolist()
    body = row[head:]
    return unpack(body, dtypes, [*sizes, body.numel() - sum(sizes)])
