"""Add two sparse vectors and keep the k largest: gTop-k's operation on two ranks.

Definition 1 of the gTop-k paper: ``mask * (a + b)`` where the mask holds the k largest
magnitudes of ``a + b``. Here a vector is a message of several slots, slot by slot, each
with its own k and with distinct indices; so the sum always has k of them to keep. What
is not kept is returned, for somebody's residual.

The two ways agree to the bit: by NumPy on the CPU, where sorted vectors merge in linear
time and a partition finds the threshold; and by fixed-length sorts on an accelerator,
where no length depends on the data and the host waits for nothing.

Magnitudes are compared as the integer bits of their floats, which order the same way
and put NaN above all: one NaN survives to the root, where it can be seen. Of equal
magnitudes the lower index goes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from comm_plan.transports.message import Message

Dropped = list[tuple[torch.Tensor, torch.Tensor]]
"""Values and indices that were not kept, for every slot."""

_MAGNITUDE = 0x7FFFFFFF
_SLOT_SHIFT = 32


class Merge(Protocol):
    """Merges messages (values float32 [K], indices int32 [K]) of one layout."""

    def prepare(self, message: Message) -> Message:
        """Return ``message`` with the entries in the order that merging wants."""

    def __call__(self, mine: Message, theirs: Message) -> tuple[Message, Dropped]:
        """Return the top of the sum of two prepared messages, and the rest of it."""


def merger(counts: Sequence[int], device: torch.device) -> Merge:
    """Return how ``device`` merges messages with ``counts[l]`` entries in slot l."""
    if device.type == "cpu":
        return NumpyMerge(counts)
    return _laid_out(tuple(counts), device)


@lru_cache(maxsize=256)
def _laid_out(counts: tuple[int, ...], device: torch.device) -> Merge:
    """Return the same again: what is copied to a device waits for it."""
    return DeviceMerge(counts, device)


class NumpyMerge:
    """On the CPU; entries in ascending order of index.

    Args:
        counts: entries of each slot.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        """Lay out the keys: slot above, index below."""
        self._counts = counts
        slots = np.arange(len(counts) + 1, dtype=np.int64) << _SLOT_SHIFT
        self._first_keys = slots
        self._slots = np.repeat(slots[:-1], counts)
        self._ends = np.cumsum([0, *counts])

    def prepare(self, message: Message) -> Message:
        """Sort every slot by index."""
        values, indices = message
        order = np.argsort(self._slots | indices.numpy(), kind="stable")
        return (
            torch.from_numpy(values.numpy()[order]),
            torch.from_numpy(indices.numpy()[order]),
        )

    def __call__(self, mine: Message, theirs: Message) -> tuple[Message, Dropped]:
        """Merge two sorted messages; the kept entries are sorted too."""
        keys, values = self._sum(mine, theirs)
        cuts = np.searchsorted(keys, self._first_keys)
        keep = np.empty(len(keys), dtype=np.bool_)
        magnitudes = values.view(np.int32) & _MAGNITUDE
        for count, (start, stop) in zip(self._counts, pairwise(cuts), strict=True):
            keep[start:stop] = _largest(magnitudes[start:stop], count)
        taken, left = np.flatnonzero(keep), np.flatnonzero(~keep)
        rest = _message(keys[left], values[left])
        cuts -= self._ends  # as many of each slot were kept as it has entries
        dropped = [
            (rest[0][start:stop], rest[1][start:stop]) for start, stop in pairwise(cuts)
        ]
        return _message(keys[taken], values[taken]), dropped

    def _sum(
        self, mine: Message, theirs: Message
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return the sorted keys (slot, index) of the sum and its values."""
        keys = np.concatenate([self._slots | m[1].numpy() for m in (mine, theirs)])
        values = np.concatenate([m[0].numpy() for m in (mine, theirs)])
        order = np.argsort(keys, kind="stable")  # linear: merges two sorted runs
        keys, values = keys[order], values[order]
        first = np.flatnonzero(keys[1:] == keys[:-1])
        values[first] += values[first + 1]
        once = np.ones(len(keys), dtype=np.bool_)
        once[first + 1] = False
        return keys[once], values[once]


def _largest(magnitudes: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.bool_]:
    """Return the mask of the ``count`` largest, of equal ones the first."""
    if count == 0:
        return np.zeros(len(magnitudes), dtype=np.bool_)
    position = len(magnitudes) - count
    threshold = np.partition(magnitudes, position)[position]
    mask: npt.NDArray[np.bool_] = magnitudes > threshold
    ties = np.flatnonzero(magnitudes == threshold)
    mask[ties[: count - np.count_nonzero(mask)]] = True
    return mask


def _message(keys: npt.NDArray[np.int64], values: npt.NDArray[np.float32]) -> Message:
    return torch.from_numpy(values), torch.from_numpy(keys.astype(np.int32))


class DeviceMerge:
    """On any device, without waiting for it; kept entries are sorted by magnitude.

    Of two entries that are added up the second stays, with value 0 and below all
    others, and is dropped: so each slot drops exactly as many entries as it keeps.

    Args:
        counts: entries of each slot.
        device: where the messages are.
    """

    def __init__(self, counts: Sequence[int], device: torch.device) -> None:
        """Lay out the keys, and where the kept and the dropped will be once sorted."""
        self._counts = list(counts)
        sizes = torch.tensor(self._counts)
        starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        kept = torch.arange(len(starts)) + starts
        dropped = kept + sizes.repeat_interleave(sizes)
        slots = torch.arange(len(sizes)).repeat_interleave(sizes) << _SLOT_SHIFT
        self._kept = kept.to(device)
        self._dropped = dropped.to(device)
        self._slots = slots.to(device)

    def prepare(self, message: Message) -> Message:
        """Return it as it is: any order will do."""
        return message

    def __call__(self, mine: Message, theirs: Message) -> tuple[Message, Dropped]:
        """Merge two messages."""
        keys = torch.cat([self._slots | mine[1], self._slots | theirs[1]])
        keys, order = keys.sort()
        values = torch.cat([mine[0], theirs[0]])[order]
        again = torch.zeros_like(keys, dtype=torch.bool)
        again[1:] = keys[1:] == keys[:-1]
        values[:-1] += values[1:].masked_fill(~again[1:], 0)
        values.masked_fill_(again, 0)
        magnitudes = values.view(torch.int32) & _MAGNITUDE
        magnitudes.masked_fill_(again, -1)
        indices = keys.int()
        order = (keys - indices - magnitudes).argsort(stable=True)
        kept, dropped = order[self._kept], order[self._dropped]
        rest = zip(
            torch.split(values[dropped], self._counts),
            torch.split(indices[dropped], self._counts),
            strict=True,
        )
        return (values[kept], indices[kept]), list(rest)
