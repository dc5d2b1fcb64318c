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
            help="Of any kind, or a folder of tune; run records of one model, ranks "
            "and link side by side.",
        ),
    ],
    target: Annotated[
        float | None,
        typer.Option(help="Value of the metric: when did each run reach it?"),
    ] = None,
) -> None:
    """Say what a profile, network, plan, run record or tuning holds."""
    from comm_plan.plans import RunRecord, load_document
    from comm_plan.plans.link import link_text
    from comm_plan.plans.tuning import TUNING_FILE
    from comm_plan.report.comparison import comparison
    from comm_plan.report.tables import tables

    documents = [path / TUNING_FILE if path.is_dir() else path for path in documents]
    found = {path: load_document(path) for path in documents}
    alike: dict[tuple[object, ...], dict[Path, RunRecord]] = {}
    for path, document in found.items():
        if isinstance(document, RunRecord):
            key = document.model_fingerprint, *document.conditions
            alike.setdefault(key, {})[path] = document
    comparable = [runs for runs in alike.values() if len(runs) > 1]
    if target is not None and not comparable:
        raise InputError(
            "--target is for several run records of one model on as many ranks, by the "
            "same backend and link"
        )
    beside = {path for runs in comparable for path in runs}
    for path, document in found.items():
        if path not in beside:
            for table in tables(document):
                screen.answer(table)
    for runs in comparable:
        names = arguments.names_of(list(runs), "run-")
        pairs = list(zip(names, runs.values(), strict=True))
        first = pairs[0][1]
        how = "side by side"
        if len(alike) > 1:
            how = (
                f"{first.workload}, {first.world_size} x {first.backend}, "
                f"{link_text(first.emulated_link)}, side by side"
            )
        screen.answer(comparison(pairs, target, how))
        if target is not None and not any(run.evaluations for run in runs.values()):
            screen.say(f"--target {target:g}: none of these runs has a metric")
