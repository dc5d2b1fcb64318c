"""gTop-k's Algorithm 2: the k largest of the sum of all messages, exactly.

Every rank has all P messages (an all-gather), adds them up and keeps the k largest. It
is what the tree of :mod:`comm_plan.collectives.gtopk` stands in for: the tree forgets
at every node what is not among the k largest there, and so may miss an index that is
small on every rank and large in the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from comm_plan.transports.message import Message


def top_of_all(messages: Sequence[Message], counts: Sequence[int]) -> Message:
    """Return the k largest of the sum of all ``messages``.

    Of equal magnitudes the lower index is kept.

    Args:
        messages: one for each rank: values float32 [K] and indices int32 [K], slot by
            slot, the indices of a slot distinct.
        counts: k of each slot; K is their sum.

    Returns:
        values [K] and indices [K], slot by slot, in ascending order of index.
    """
    values, indices = [], []
    split = [tuple(part.split(list(counts)) for part in m) for m in messages]
    for slot, k in enumerate(counts):
        found = torch.cat([each[1][slot] for each in split])
        where, rank_of = found.unique(return_inverse=True)
        sums = (
            messages[0][0]
            .new_zeros(len(where))
            .index_add_(0, rank_of, torch.cat([each[0][slot] for each in split]))
        )
        largest = sums.abs().sort(descending=True, stable=True).indices[:k]
        kept = largest.sort().values
        values.append(sums[kept])
        indices.append(where[kept].int())
    return torch.cat(values), torch.cat(indices)
