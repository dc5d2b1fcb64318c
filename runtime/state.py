"""What an engine remembers from step to step, rank by rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypedDict, TypeVar

import torch

from comm_plan.errors import MismatchError
from comm_plan.plans.compression import EQUAL_ON_ALL_RANKS, POWERS, VELOCITY
from comm_plan.transports.base import Transport

T = TypeVar("T")

Remembered = dict[str, dict[str, torch.Tensor]]
"""What one rank remembers: parameter name -> quantity, such as residual -> tensor."""


class EngineState(TypedDict):
    """What an exact resume needs.

    What is remembered (:data:`Remembered`) differs from rank to rank and is kept by it,
    so that several ranks' states can be merged into one, as
    ``torch.distributed.checkpoint`` does. ``scale``: of the loss whose gradients are
    in there. ``of_rounds``: of local steps, so that residuals are how far parameters
    were to move, and no gradients.
    """

    step: int
    skipped_steps: int
    world_size: int
    scale: float
    of_rounds: bool
    ranks: dict[str, Remembered]


def without_residuals(remembered: Remembered) -> tuple[Remembered, bool]:
    """Return ``remembered`` with nothing that waits to be sent, and if anything did.

    Velocities, which an optimizer may take over, stay.
    """
    waiting = POWERS.keys() - {VELOCITY}
    states = remembered.values()
    held = any(bool(of[kind].any()) for of in states for kind in waiting & of.keys())
    return {
        name: {
            quantity: torch.zeros_like(tensor) if quantity in waiting else tensor
            for quantity, tensor in quantities.items()
        }
        for name, quantities in remembered.items()
    }, held


def on_cpu(ranks: Mapping[str, Remembered]) -> dict[str, Remembered]:
    """Return a copy of parts of ranks in main memory, for ranks with other devices.

    Residuals are often parts of one tensor, and pickled each would take all of it
    along: here every tensor has a storage of its own.
    """
    return {
        rank: {
            name: {
                quantity: tensor.detach().to("cpu", copy=True)
                for quantity, tensor in quantities.items()
            }
            for name, quantities in part.items()
        }
        for rank, part in ranks.items()
    }


def gathered(state: EngineState, ranks: Transport, *, keep: bool = True) -> EngineState:
    """Return ``state`` with the parts of all ranks, in main memory; all call it.

    Args:
        state: of this rank.
        ranks: all of them.
        keep: this rank wants the parts of the others; if not, it forgets each when the
            next has come.
    """
    parts = on_cpu(state["ranks"])
    for part in one_by_one(parts, ranks):
        if keep:
            parts = parts | part
    return {**state, "ranks": parts}


def one_by_one(value: T, ranks: Transport) -> Iterator[T]:
    """Yield every rank's ``value``, as large as the model, say; all go to its end."""
    for rank in range(ranks.world_size):
        yield ranks.broadcast_object(value if rank == ranks.rank else None, rank)


def share_of(
    ranks: Mapping[str, Remembered], saved_size: int, rank: int, world_size: int
) -> Remembered:
    """Return what ``rank`` of ``world_size`` remembers after a run of ``saved_size``.

    Its own part; among another number of ranks the mean of all parts: so what was not
    sent yet has the same weight in the means to come. What is equal on all ranks is so
    for any number of them. Parts may be on different devices; means are in main memory.

    Args:
        ranks: the parts that were saved, by rank.
        saved_size: how many ranks there were.
        rank: this one.
        world_size: how many there are now.

    Raises:
        MismatchError: parts that are needed are not there.
    """
    wanted = range(saved_size) if saved_size != world_size else [rank]
    missing = [str(each) for each in wanted if str(each) not in ranks]
    if missing:
        raise MismatchError(
            f"the state is of {saved_size} ranks and holds nothing of rank "
            f"{', '.join(missing)}: rank {rank} of {world_size} needs it; merge the "
            'ranks\' state["ranks"]'
        )
    if saved_size == world_size:
        return ranks[str(rank)]
    total: Remembered = {}
    for part in on_cpu(ranks).values():
        for name, quantities in part.items():
            sums = total.setdefault(name, {})
            for quantity, tensor in quantities.items():
                if quantity in EQUAL_ON_ALL_RANKS:
                    sums[quantity] = tensor
                    continue
                shared = tensor / saved_size ** POWERS[quantity]
                sums[quantity] = sums[quantity] + shared if quantity in sums else shared
    return total
