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
from itertools import product

from comm_plan.benchmarks import tables
from comm_plan.reproduction.gtopk_tree import NUMEL, TAILS, overlap

DENSITY = 0.001
RANKS = (2, 4, 8, 16, 32, 64)
SHARED = (0.0, 0.1, 0.5)
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


if __name__ == "__main__":
    main()
