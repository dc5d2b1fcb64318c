"""The ranks that a verb runs on: started here, or found in the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from comm_plan import screen, units
from comm_plan.commands import arguments
from comm_plan.commands.options import Backend, Ranks
from comm_plan.errors import InputError, MismatchError
from comm_plan.transports.ranks import TIMEOUT_S, place

if TYPE_CHECKING:
    from comm_plan.plans import EmulatedLink, Plan
    from comm_plan.transports.base import Transport


def start_ranks(context: typer.Context, ranks: Ranks) -> None:
    """Run this same command on ``ranks.local_ranks`` ranks instead, and exit.

    The ranks get the same words; their environment says that they are started.

    Raises:
        InputError: there are ranks already, or what is wrong with their link.
        typer.Exit: with the exit code of the ranks.
    """
    from comm_plan.transports.launch import STARTED, run_local

    link_of(ranks)  # what is wrong with it is said once, by none of the ranks
    if ranks.local_ranks in (None, 1) or STARTED in os.environ:
        return
    if place().launcher != "none":
        raise InputError(
            f"--local-ranks under {place().launcher}: leave one of the two out"
        )
    command = [sys.executable, "-m", "comm_plan.cli", *context.obj]
    code = run_local(
        command, ranks.local_ranks, arguments.value(ranks.backend) or "gloo"
    )
    raise typer.Exit(code)


@contextmanager
def connected(ranks: Ranks, timeout_s: float = TIMEOUT_S) -> Iterator[Transport]:
    """Join the run that the launcher's environment describes.

    Raises:
        InputError: it describes none, or one rank is to have a link.
    """
    from comm_plan.transports.connect import connect

    link = link_of(ranks)
    with connect(
        arguments.value(ranks.backend),
        device=arguments.value(ranks.device),
        timeout_s=timeout_s,
        report=screen.explain,
    ) as transport:
        if link is None:
            yield transport
        elif transport.world_size == 1:
            raise InputError(
                "--emulate-link: one rank sends nothing: start more (--local-ranks, "
                "torchrun, mpirun)"
            )
        else:
            from comm_plan.collectives.emulation import emulate

            yield emulate(transport, link)


def as_planned(
    ranks: Ranks, plans: Mapping[Path, Plan], *, elastic: bool = False
) -> Ranks:
    """Return ``ranks`` on the backend of the first plan, unless another was given.

    Args:
        ranks: as they are asked for.
        plans: what they are to train by, each with its file.
        elastic: a plan for another number of ranks is solved again.

    Raises:
        MismatchError: a plan is for another number than are to be started here.
    """
    from comm_plan.transports.backends import find_backend

    backend = next(iter(plans.values())).backend
    find_backend(backend)
    for path, plan in plans.items():
        if elastic or ranks.local_ranks in (None, plan.world_size):
            continue
        raise MismatchError(
            f"{path} is for {units.counted(plan.world_size, 'rank')}, --local-ranks "
            f"starts {ranks.local_ranks}: start {plan.world_size}, or solve with "
            f"--world-size {ranks.local_ranks}"
        )
    return replace(ranks, backend=ranks.backend or Backend(backend))


def link_of(ranks: Ranks) -> EmulatedLink | None:
    """Return the link to emulate, None for that of the ranks.

    Raises:
        InputError: it is described wrongly.
    """
    from comm_plan.plans.link import EmulatedLink

    text = ranks.emulate_link
    return None if text is None else EmulatedLink.parse(text)
