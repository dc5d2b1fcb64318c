"""What all ranks must have been given alike, and who was given something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.distributed as dist


def difference(everyone: Sequence[Mapping[str, str]]) -> str | None:
    """Return what differs first from rank 0's settings and on which ranks, or None.

    Args:
        everyone: by rank, what each was given, by name.
    """
    on_rank_0 = everyone[0]
    for name in dict.fromkeys(name for one in everyone for name in one):
        expected = on_rank_0.get(name, "absent")
        found = [one.get(name, "absent") for one in everyone]
        ranks = [rank for rank, value in enumerate(found) if value != expected]
        if ranks:
            return (
                f"{name} is {found[ranks[0]]} on {_named(ranks)}, {expected} on rank 0"
                ": let all ranks have the same"
            )
    return None


def debugging() -> dict[str, str]:
    """Return the setting that makes torch exchange messages of its own."""
    return {"$TORCH_DISTRIBUTED_DEBUG": dist.get_debug_level().name}


def _named(ranks: Sequence[int]) -> str:
    """Return ``ranks 1, 2, 3, ...``, of many the first."""
    listed = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"
