"""All-reduce: messages are summed where they lie.

For compressors whose messages add up: dense gradients, half precision, and TernGrad's
levels in int8.
"""

from __future__ import annotations

from comm_plan.collectives.message import Codec, message_nbytes
from comm_plan.transports.base import Transport


def aggregate(transport: Transport, codec: Codec) -> int:
    """Sum the message over all ranks and give the one sum to ``codec``.

    Returns:
        Bytes of the message that this rank contributed.

    Raises:
        CollectiveError: the all-reduce failed or timed out.
    """
    codec.agree(lambda tensor: transport.all_reduce(tensor, "max"))
    message = codec.encode()
    for tensor in message:
        transport.all_reduce(tensor)
    codec.decode([message])
    return message_nbytes(message)
