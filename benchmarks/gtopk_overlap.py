"""How many of the exact k largest gTop-k's tree finds, for 2 to 64 ranks.

    python -m comm_plan.benchmarks.gtopk_overlap

Every rank's gradient is a part that all share and a part of its own; ``shared`` is the
share of the variance that is common. Elements are normal, or large ones are less rare,
as in gradients (Student's t with 3 degrees of freedom). Each rank sends its k largest;
the tree (:mod:`comm_plan.collectives.gtopk`) is compared with the sum of all messages
cut to its k largest (:mod:`comm_plan.collectives.exact_gtopk`): the share of indices
that both have, and the share of the exact result's magnitude that the tree's has.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import product

import numpy as np
import torch

from comm_plan.benchmarks import tables
from comm_plan.collectives.exact_gtopk import top_of_all
from comm_plan.collectives.gtopk import rounds
from comm_plan.collectives.top_of_sum import merger
from comm_plan.transports.message import Message

NUMEL = 100_000
DENSITY = 0.001
RANKS = (2, 4, 8, 16, 32, 64)
SHARED = (0.0, 0.1, 0.5)
TAILS = {"normal": np.inf, "t3": 3.0}
DRAWS = 10
CASES = [*product(TAILS.items(), SHARED)]


def main() -> None:
    """Print the table and save it."""
    k = round(NUMEL * DENSITY)
    rows, figures = [], []
    for ranks in RANKS:
        row = [str(ranks)]
        for (tail, freedom), shared in CASES:
            overlaps, masses = zip(
                *(overlap(ranks, freedom, shared, k, seed) for seed in range(DRAWS)),
                strict=True,
            )
            indices, mass = statistics.mean(overlaps), statistics.mean(masses)
            row.append(f"{indices:.0%}, {mass:.0%}")
            case = {"ranks": ranks, "tail": tail, "shared": shared}
            figures.append({**case, "indices": indices, "mass": mass})
        rows.append(row)
    headings = ["ranks", *(f"{tail}, {shared:.0%}" for (tail, _), shared in CASES)]
    table = tables.markdown(headings, rows)
    facts = f"{NUMEL:,} elements, k = {k}, means of {DRAWS} draws"
    meaning = (
        "Share of the exact k largest indices that gTop-k's tree finds, and share of "
        "their magnitude, by how elements are distributed and by the share of the "
        f"gradients' variance that ranks have in common; {facts}."
    )
    print(tables.save("gtopk-overlap", [meaning, table], {"rows": figures}))


def overlap(
    ranks: int, freedom: float, shared: float, k: int, seed: int
) -> tuple[float, float]:
    """Return the shares of the exact result's indices and magnitude that a tree has."""
    rng = np.random.default_rng(seed)
    common = _elements(rng, freedom)
    messages = [
        _top(np.sqrt(shared) * common + np.sqrt(1 - shared) * own, k)
        for own in (_elements(rng, freedom) for _ in range(ranks))
    ]
    values, indices = top_of_all(messages, [k])
    exact = dict(zip(indices.tolist(), values.abs().tolist(), strict=True))
    _, found = tree(messages, [k])
    hits = [exact[index] for index in found.tolist() if index in exact]
    return len(hits) / k, sum(hits) / sum(exact.values())


def tree(messages: Sequence[Message], counts: Sequence[int]) -> Message:
    """Return what rank 0 holds after all rounds, in this process."""
    merge = merger(counts, torch.device("cpu"))
    totals = [merge.prepare(message) for message in messages]
    for pairs in rounds(len(totals)):
        for receiver, sender in pairs:
            totals[receiver], _ = merge(totals[receiver], totals[sender])
    return totals[0]


def _elements(rng: np.random.Generator, freedom: float) -> np.ndarray:
    if np.isinf(freedom):
        return rng.standard_normal(NUMEL)
    return rng.standard_t(freedom, NUMEL)


def _top(gradient: np.ndarray, k: int) -> Message:
    indices = np.sort(np.argpartition(-np.abs(gradient), k)[:k]).astype(np.int32)
    values = gradient[indices].astype(np.float32)
    return torch.from_numpy(values), torch.from_numpy(indices)


if __name__ == "__main__":
    main()
