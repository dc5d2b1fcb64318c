"""Words that a rank receives in one sparse aggregation, counted, for 2 to 16 ranks.

    python -m comm_plan.benchmarks.sparse_volume

The ranks are threads, and every collective is made of messages here, which are counted:
all-reduce and all-gather are rings, broadcast is a binomial tree, as in the closed
forms. Every rank brings its own normal gradient. In units of k words, the number of
elements that a rank selects; beside what the closed forms say (``volume`` times the
buffer, over 4 bytes). They count the critical path: of gTop-k, which goes up a tree and
down again, that is twice what its busiest rank receives.
"""

from __future__ import annotations

from typing import cast

import torch

from comm_plan.benchmarks import tables
from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.compressors import build
from comm_plan.compressors.base import Context, Slot
from comm_plan.plans.compression import METHODS, selected
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.base import Reduction, Transport

NUMEL, DENSITY = 100_000, 0.01
RANKS = (2, 3, 4, 6, 8, 12, 16)
WAYS = ("topk", "gtopk", "spardl", "partition-topk")
WORD_NBYTES = 4


def main() -> None:
    """Print the table and save it."""
    rows, figures = [], []
    for ranks in RANKS:
        row = [str(ranks)]
        for method in WAYS:
            words, form = counted(method, ranks), closed_form(method, ranks)
            row.append(f"{words:.2f} ({form:.2f})")
            figures.append(
                {"ranks": ranks, "method": method, "counted": words, "form": form}
            )
        rows.append(row)
    meaning = (
        "Words that the busiest rank receives in one aggregation, in units of k, and "
        "in brackets the closed form, which counts the critical path; "
        f"{NUMEL:,} elements, k = {selected(NUMEL, DENSITY):,}. Rings and trees of "
        "messages, all counted."
    )
    table = tables.markdown(["ranks", *WAYS], rows)
    print(tables.save("sparse-volume", [meaning, table], {"rows": figures}))


def counted(method: str, ranks: int) -> float:
    """Return what the busiest of ``ranks`` receives, in units of k words."""
    received = run_ranks(ranks, received_nbytes, method)
    return max(received) / WORD_NBYTES / selected(NUMEL, DENSITY)


def closed_form(method: str, ranks: int) -> float:
    """Return what the closed forms say of the critical path, in units of k words."""
    named, collective = METHODS[method]
    spec = named.at_density(DENSITY)
    message = spec.message_nbytes([NUMEL], collective)
    known = COLLECTIVES[collective]
    nbytes = known.terms(ranks).volume * known.buffer_nbytes(message, ranks)
    gathered = COLLECTIVES["allgather"].terms(ranks).volume
    nbytes += gathered * spec.gathered_nbytes([NUMEL])
    return nbytes / WORD_NBYTES / selected(NUMEL, DENSITY)


def received_nbytes(transport: Transport, method: str) -> int:
    """Return what this rank receives in one aggregation."""
    named, collective = METHODS[method]
    context = Context(transport.world_size, transport.rank, transport.device)
    slots = [Slot("vector", NUMEL)]
    compressor = build(named.at_density(DENSITY), collective, slots, context)
    generator = torch.Generator().manual_seed(transport.rank)
    compressor.add(0, torch.randn(NUMEL, generator=generator))
    messages = Messages(transport)
    COLLECTIVES[collective].aggregate(cast("Transport", messages), compressor)
    return messages.received_nbytes


class Messages:
    """A transport whose collectives are made of messages between two ranks.

    Args:
        inner: what carries the messages.

    Attributes:
        received_nbytes: by this rank so far.
    """

    def __init__(self, inner: Transport) -> None:
        self.rank, self.world_size = inner.rank, inner.world_size
        self.device = inner.device
        self.received_nbytes = 0
        self._inner = inner
        self._next = (self.rank + 1) % self.world_size
        self._previous = (self.rank - 1) % self.world_size

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send."""
        self._inner.send(tensor, to)

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """Receive and count."""
        self._inner.receive(tensor, source)
        self.received_nbytes += tensor.nbytes

    def exchange(
        self, tensor: torch.Tensor, to: int, received: torch.Tensor, source: int
    ) -> None:
        """Send and receive, and count what came."""
        self._inner.exchange(tensor, to, received, source)
        self.received_nbytes += received.nbytes

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Pass the parts round a ring."""
        rows = tensor.new_empty(self.world_size, tensor.numel())
        rows[self.rank] = tensor
        self._round(list(rows), self.rank)
        return rows

    def all_reduce(self, tensor: torch.Tensor, operation: Reduction = "sum") -> None:
        """Add up round a ring, then pass the sums round it."""
        assert operation == "sum"
        parts = list(tensor.tensor_split(self.world_size))
        for far in range(self.world_size - 1):
            own = parts[(self.rank - far) % self.world_size]
            came = parts[(self.rank - far - 1) % self.world_size]
            addend = torch.empty_like(came)
            self.exchange(own, self._next, addend, self._previous)
            came += addend
        self._round(parts, self._next)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Hand down a binomial tree from rank 0."""
        assert root == 0
        has = 1
        while has < self.world_size:
            if self.rank < has and self.rank + has < self.world_size:
                self.send(tensor, self.rank + has)
            elif has <= self.rank < 2 * has:
                self.receive(tensor, self.rank - has)
            has *= 2

    def _round(self, parts: list[torch.Tensor], first: int) -> None:
        """Pass all parts on; this rank begins with number ``first``."""
        for far in range(self.world_size - 1):
            own = parts[(first - far) % self.world_size]
            came = parts[(first - far - 1) % self.world_size]
            self.exchange(own, self._next, came, self._previous)


if __name__ == "__main__":
    main()
