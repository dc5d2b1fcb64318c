"""``comm-plan report``: documents as a page or timelines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comm_plan import screen
from comm_plan.commands import arguments
from comm_plan.commands.options import WorldSize


def report(
    documents: Annotated[
        list[Path],
        typer.Argument(
            metavar="DOCUMENT...",
            help="Profile, network, plans, run records, a tuning; or their folder.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="report.html, a page of all there is; or only timelines: .png, or "
            ".json (Perfetto). Default: timelines in the terminal.",
        ),
    ] = None,
    solvers: Annotated[
        str,
        typer.Option(
            help="Simulated with profile and network; comma-separated, or all."
        ),
    ] = "wfbp,threshold,optimal",
    world_size: WorldSize = None,
) -> None:
    """Show documents: a page of charts and tables, or timelines."""
    from comm_plan import reporting

    names = arguments.solvers(solvers)
    if output is None:
        from comm_plan.report.terminal import TerminalTimelines

        screen.answer(TerminalTimelines(reporting.draw(documents, names, world_size)))
        return
    reporting.write(documents, output, names, world_size)
    screen.say(f"wrote {output}")
