"""``comm-plan show``: documents in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comm_plan import screen
from comm_plan.commands import arguments
from comm_plan.errors import InputError


def show(
    documents: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Of any kind, or a folder of tune; several run records side by side.",
        ),
    ],
    target: Annotated[
        float | None,
        typer.Option(help="Value of the metric: when did each run reach it?"),
    ] = None,
) -> None:
    """Say what a profile, network, plan, run record or tuning holds."""
    from comm_plan.plans import RunRecord, load_document
    from comm_plan.plans.tuning import TUNING_FILE
    from comm_plan.report.comparison import comparison
    from comm_plan.report.tables import tables

    documents = [path / TUNING_FILE if path.is_dir() else path for path in documents]
    found = {path: load_document(path) for path in documents}
    runs = {path: of for path, of in found.items() if isinstance(of, RunRecord)}
    if target is not None and len(runs) < 2:
        raise InputError("--target is for several run records")
    beside = runs if len(runs) > 1 else {}
    for path, document in found.items():
        if path not in beside:
            for table in tables(document):
                screen.show(table)
    if beside:
        names = arguments.names_of(list(beside), "run-")
        pairs = list(zip(names, beside.values(), strict=True))
        screen.show(comparison(pairs, target))
