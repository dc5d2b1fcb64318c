"""What all ranks must know of each other at the end of a step, sent along for free.

A collective of its own would be one more wait for everybody. So the flags ride with the
last bucket, where its collective carries what stands in front of a message to all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from comm_plan.collectives.message import Codec
from comm_plan.transports.base import Transport
from comm_plan.transports.message import Message


class Flagged:
    """A bucket's codec whose messages begin with their rank's flags.

    Args:
        codec: the bucket's.
        flags: int32 [n] of this rank; n is the same on all.

    Attributes:
        highest: [n] the largest of each flag over the ranks; None before ``decode``.
    """

    def __init__(self, codec: Codec, flags: torch.Tensor) -> None:
        self.highest: torch.Tensor | None = None
        self._codec = codec
        self._flags = flags

    @property
    def variable_length(self) -> bool:
        """As of the codec."""
        return self._codec.variable_length

    def __getattr__(self, name: str) -> Any:
        """Return what else a collective wants of the codec."""
        return getattr(self._codec, name)

    def agree(self, ranks: Transport) -> None:
        """Agree as the codec does."""
        self._codec.agree(ranks)

    def encode(self) -> Message:
        """Return the flags, and the codec's message."""
        return (self._flags, *self._codec.encode())

    def decode(self, messages: Sequence[Message]) -> None:
        """Keep the flags; hand the messages on."""
        self.highest = torch.stack([message[0] for message in messages]).amax(0)
        self._codec.decode([message[1:] for message in messages])
