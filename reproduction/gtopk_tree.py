"""How many of the exact k largest gTop-k's tree finds.

Every rank's gradient is a part that all share and a part of its own. Each sends its k
largest; the tree (:mod:`comm_plan.collectives.gtopk`) is compared with the sum of all
messages cut to its k largest (:mod:`comm_plan.collectives.exact_gtopk`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from comm_plan.collectives.exact_gtopk import top_of_all
from comm_plan.collectives.gtopk import rounds
from comm_plan.collectives.top_of_sum import merger
from comm_plan.transports.message import Message

NUMEL = 100_000
TAILS = {"normal": np.inf, "Student's t, 3 degrees": 3.0}
"""Degrees of freedom of the elements' distribution; fewer: heavier tails."""


def overlap(
    ranks: int, freedom: float, shared: float, k: int, seed: int
) -> tuple[float, float]:
    """Return the shares of the exact result's indices and magnitude that a tree has.

    Args:
        ranks: how many.
        freedom: of Student's t; infinite: normal.
        shared: the share of the variance that all ranks have in common.
        k: how many each rank sends.
        seed: of the draw.
    """
    messages = _drawn(ranks, freedom, shared, k, seed)
    values, indices = top_of_all(messages, [k])
    exact = dict(zip(indices.tolist(), values.abs().tolist(), strict=True))
    (_, found), _ = tree(messages, [k])
    hits = [exact[index] for index in found.tolist() if index in exact]
    return len(hits) / k, sum(hits) / sum(exact.values())


def lost(
    ranks: int, freedom: float, shared: float, k: int, seed: int
) -> tuple[float, float]:
    """Return what is lost of a step by two rules, over the applied magnitude.

    By Algorithm 4, line 10, a rank takes back what it sent and does not find in the
    result. By ours, the node that drops something keeps it. Args are those of
    :func:`overlap`.
    """
    messages = _drawn(ranks, freedom, shared, k, seed)
    (values, indices), dropped = tree(messages, [k])
    missing = np.zeros(NUMEL)
    for sent, where in messages:
        np.add.at(missing, where.numpy(), sent.numpy())
    missing[indices.numpy()] -= values.numpy()
    as_printed, ours = missing.copy(), missing
    for sent, where in messages:
        back = ~np.isin(where.numpy(), indices.numpy())
        as_printed[where.numpy()[back]] -= sent.numpy()[back]
    for kept, where in dropped:
        np.add.at(ours, where.numpy(), -kept.numpy())
    applied = values.abs().sum().item()
    lost_printed, lost_here = np.abs([as_printed, ours]).sum(1) / applied
    return float(lost_printed), float(lost_here)


def tree(
    messages: Sequence[Message], counts: Sequence[int]
) -> tuple[Message, list[Message]]:
    """Return what rank 0 holds after all rounds, and all that nodes dropped."""
    merge = merger(counts, torch.device("cpu"))
    totals = [merge.prepare(message) for message in messages]
    dropped: list[Message] = []
    for pairs in rounds(len(totals)):
        for receiver, sender in pairs:
            totals[receiver], rest = merge(totals[receiver], totals[sender])
            dropped += rest
    return totals[0], dropped


def _drawn(
    ranks: int, freedom: float, shared: float, k: int, seed: int
) -> list[Message]:
    """Return every rank's k largest."""
    rng = np.random.default_rng(seed)
    common = _elements(rng, freedom)
    return [
        _top(np.sqrt(shared) * common + np.sqrt(1 - shared) * own, k)
        for own in (_elements(rng, freedom) for _ in range(ranks))
    ]


def _elements(rng: np.random.Generator, freedom: float) -> npt.NDArray[np.float64]:
    if np.isinf(freedom):
        return rng.standard_normal(NUMEL)
    return rng.standard_t(freedom, NUMEL)


def _top(gradient: npt.NDArray[np.float64], k: int) -> Message:
    indices = np.sort(np.argpartition(-np.abs(gradient), k)[:k]).astype(np.int32)
    values = gradient[indices].astype(np.float32)
    return torch.from_numpy(values), torch.from_numpy(indices)
