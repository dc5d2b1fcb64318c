"""What ranks run in tests: functions of a transport, importable from every process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from comm_plan.collectives.aggregate import AGGREGATIONS
from comm_plan.collectives.message import Message
from comm_plan.collectives.transport import Transport


@dataclass
class Recorder:
    """The least codec: sends a given message and remembers what it was told.

    For gTop-k, ``counts`` are its slots' entries and ``residuals`` collect, per slot,
    what is put back, by index.
    """

    message: Message
    variable_length: bool = False
    counts: Sequence[int] = ()
    scaler: float | None = None
    received: list[Message] = field(default_factory=list)
    residuals: list[dict[int, float]] = field(default_factory=list)

    def agree(self, maximum):
        """Share the scaler."""
        if self.scaler is not None:
            shared = torch.tensor([self.scaler])
            maximum(shared)
            self.scaler = shared.item()

    def encode(self):
        """Send a copy."""
        self.residuals = [{} for _ in self.counts]
        return tuple(tensor.clone() for tensor in self.message)

    def decode(self, messages):
        """Keep what came."""
        self.received = [tuple(t.clone() for t in message) for message in messages]

    def put_back(self, index, values, indices):
        """Add."""
        residual = self.residuals[index]
        for i, value in zip(indices.tolist(), values.tolist(), strict=True):
            residual[i] = residual.get(i, 0.0) + value


def aggregate(
    transport: Transport, collective: str, codecs: Sequence[Recorder]
) -> tuple[Recorder, int]:
    """Aggregate this rank's of ``codecs``; return it and the bytes it contributed."""
    codec = codecs[transport.rank]
    nbytes = AGGREGATIONS[collective](transport, codec)
    return codec, nbytes
