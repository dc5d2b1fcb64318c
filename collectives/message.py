"""What an aggregation is given: a bucket's compressor, and its message as bytes.

A message is a tuple of flat tensors, such as k float32 values and k int32 indices. It
crosses the network as one byte buffer that holds them one after the other, so that one
collective moves them all, each in its own type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from comm_plan.transports.base import Transport
from comm_plan.transports.message import Message

if TYPE_CHECKING:
    import torch


class Codec(Protocol):
    """What every aggregation needs of a bucket's compressor."""

    @property
    def variable_length(self) -> bool:
        """Whether the lengths of a message's tensors differ from rank to rank."""

    def agree(self, ranks: Transport) -> None:
        """Share what must be equal on all ranks before :meth:`encode`."""

    def encode(self) -> Message:
        """Return this rank's contribution."""

    def decode(self, messages: Sequence[Message]) -> None:
        """Take one combined message, or one message from every rank."""


def message_nbytes(message: Message) -> int:
    """Return the bytes of all tensors of ``message``."""
    return sum(tensor.nbytes for tensor in message)


def pack(message: Message) -> torch.Tensor:
    """Return the bytes of ``message`` [message_nbytes]; of one tensor: shared."""
    import torch

    parts = [_bytes(tensor) for tensor in message]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def unpack(
    buffer: torch.Tensor, dtypes: Sequence[torch.dtype], sizes: Sequence[int]
) -> Message:
    """Return the message that ``buffer`` holds.

    Args:
        buffer: what :func:`pack` returned, perhaps on another rank.
        dtypes: type of each tensor.
        sizes: bytes of each tensor; their sum is the length of ``buffer``.
    """
    parts = buffer.split(list(sizes))
    return tuple(map(_typed, parts, dtypes))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of ``tensor``, shared."""
    import torch

    if not tensor.numel():  # of NumPy it has a stride of 0, which no view allows
        return tensor.new_empty(0, dtype=torch.uint8)
    return tensor.view(torch.uint8)


def _typed(part: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    aligned = part.storage_offset() % dtype.itemsize == 0
    return (part if aligned else part.clone()).view(dtype)
