"""``comm-plan benchmark-network``: a cluster, measured or imported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comm_plan import screen
from comm_plan.collectives.registry import COLLECTIVES, check_known
from comm_plan.commands import arguments, launching
from comm_plan.commands.options import Json, Ranks, fields_of, grouped, refuse_given
from comm_plan.commands.output import finish
from comm_plan.commbench.defaults import BUDGET_S
from comm_plan.errors import InputError
from comm_plan.plans.document import MAX_RANKS, YEAR_S

if TYPE_CHECKING:
    from comm_plan.plans import Network
    from comm_plan.transports.base import Transport


@grouped
def benchmark_network(
    *,
    context: typer.Context,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File for the network.")
    ] = Path("network.json"),
    ranks: Ranks,
    collectives: Annotated[
        str | None, typer.Option(help="Comma-separated. Default: all.")
    ] = None,
    max_nbytes: Annotated[
        int | None,
        typer.Option(
            "--max-bytes",
            min=4,
            help="Largest message, whatever it takes. Default: up to 64 MiB, as "
            "--budget allows once the bandwidth shows.",
        ),
    ] = None,
    budget_s: Annotated[
        float,
        typer.Option(
            "--budget", min=0, max=YEAR_S, help="About so many seconds in all."
        ),
    ] = BUDGET_S,
    imported: Annotated[
        list[Path] | None,
        typer.Option("--import", help="Read nccl-tests or OSU output instead."),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option(min=2, max=MAX_RANKS, help="Ranks of the imported files."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure what collectives cost on this cluster, and fit it."""
    from comm_plan.plans import check_writable

    if imported:
        from comm_plan.commbench.importing import load

        measuring = {"collectives", "max_nbytes", "budget_s", *fields_of(Ranks)}
        refuse_given(context, measuring - {"backend"}, "it is not for --import")
        check_writable(output, unlike=imported)
        measured = load(
            imported, world_size=world_size, backend=arguments.value(ranks.backend)
        )
    else:
        refuse_given(context, {"world_size"}, "it is for --import")
        names = _names(collectives)
        launching.start_ranks(context, ranks)
        check_writable(output)
        with launching.connected(ranks) as transport:
            measured = _sweep(transport, names, max_nbytes, budget_s)
    finish(measured, output, json)


def _names(collectives: str | None) -> tuple[str, ...]:
    """Return which collectives to measure.

    Raises:
        InputError: none, or one that is unknown.
    """
    names = tuple(COLLECTIVES) if collectives is None else arguments.names(collectives)
    if not names:
        raise InputError(
            f"--collectives {collectives!r}: give names, comma-separated, or leave it "
            "out for all"
        )
    check_known(names)
    return names


def _sweep(
    transport: Transport,
    names: Sequence[str],
    max_nbytes: int | None,
    budget_s: float,
) -> Network:
    from comm_plan.commbench.probe import affordable
    from comm_plan.commbench.sweep import LARGEST_NBYTES, geometric_sizes, measure
    from comm_plan.report.network import binary

    sizes = geometric_sizes(largest=max_nbytes or LARGEST_NBYTES)
    if max_nbytes is None and transport.world_size > 1:
        largest = sizes[-1]
        fitting = affordable(transport, sizes, budget_s, names)
        sizes, budget_s = fitting.sizes, fitting.left_s
        if sizes[-1] < largest and transport.rank == 0:
            screen.say(
                f"messages up to {binary(sizes[-1])}: longer ones would take more "
                "than --budget; --max-bytes measures them"
            )
    with screen.progress() as progress:
        return measure(transport, names, sizes, budget_s, progress)
