"""``comm-plan tune``: the best plan of those that were tried."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from comm_plan import screen
from comm_plan.commands import arguments, launching
from comm_plan.commands.options import (
    AccuracyClass,
    DenseLayers,
    FindUnusedParameters,
    Json,
    MaxRatio,
    OptimizerChanges,
    Ranks,
    Tolerance,
    WorkloadArgument,
    WorkloadOptions,
    grouped,
    refuse_given,
)
from comm_plan.commands.output import finish
from comm_plan.commands.workload import files_of, load_workload
from comm_plan.planner.solvers import MAX_RATIO, TOLERANCE
from comm_plan.plans.document import MAX_SEED, YEAR_S
from comm_plan.plans.tuning import TUNED_FILE, TUNING_FILE
from comm_plan.transports.ranks import place
from comm_plan.tuner.defaults import BUDGET_S, SEEDS


@grouped
def tune(
    *,
    context: typer.Context,
    workload: WorkloadArgument,
    folder: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for plans and evidence.")
    ] = Path("tuning"),
    budget_s: Annotated[
        float,
        typer.Option(
            "--budget", min=10, max=YEAR_S, help="Seconds it may take in all."
        ),
    ] = BUDGET_S,
    objective: Annotated[
        Literal["time", "loss"],
        typer.Option(help="Shortest iterations, or the loss that falls fastest."),
    ] = "time",
    seeds: Annotated[
        int, typer.Option(min=1, help="Trainings to judge loss by.")
    ] = SEEDS,
    local_steps: Annotated[
        str | None,
        typer.Option(
            "--local-steps", help="Also try rounds of so many steps: 4,16, say."
        ),
    ] = None,
    changes: WorkloadOptions,
    optimizer: OptimizerChanges,
    seed: Annotated[
        int, typer.Option(min=0, max=MAX_SEED, help="Of the first training.")
    ] = 0,
    profile: Annotated[
        Path | None, typer.Option(help="Do not measure: what profile wrote.")
    ] = None,
    network: Annotated[
        Path | None, typer.Option(help="Do not measure: what benchmark-network wrote.")
    ] = None,
    accuracy: AccuracyClass = None,
    allow: Annotated[
        str | None,
        typer.Option(help="Compressors to try whatever they lose, comma-separated."),
    ] = None,
    dense_layers: DenseLayers = None,
    max_ratio: MaxRatio = MAX_RATIO,
    tolerance: Tolerance = TOLERANCE,
    find_unused_parameters: FindUnusedParameters = False,
    ranks: Ranks,
    json: Json = False,
) -> None:
    """Try the plans that could be best on your own model; say which to run."""
    if objective != "loss":
        refuse_given(context, {"seeds", "local_steps"}, "it is for --objective loss")
    from comm_plan.planner import Settings
    from comm_plan.plans import Network, Profile, check_writable
    from comm_plan.plans.files import make_folder
    from comm_plan.tuner.tuned import FILES

    settings = Settings(
        dense_layers=arguments.names(dense_layers),
        max_ratio=max_ratio,
        allow=arguments.names(allow),
        accuracy=accuracy or ("loss" if objective == "loss" else "noise"),
        tolerance=tolerance,
    )
    lengths = arguments.lengths_of_rounds(local_steps)
    known_profile = None if profile is None else Profile.load(profile)
    known_network = None if network is None else Network.load(network)
    make_folder(folder)
    for name in FILES:
        check_writable(folder / name, unlike=files_of(workload))
    with _best_is_told(folder):
        launching.start_ranks(context, ranks)
    from comm_plan.planner.predict import posed
    from comm_plan.planner.remarks import beyond_samples
    from comm_plan.tuner.options import Options
    from comm_plan.tuner.tune import tune as run

    model = load_workload(workload, changes, optimizer, seed)
    with (
        _best_is_told(folder),
        launching.connected(ranks) as transport,
        screen.progress() as progress,
    ):
        tuned = run(
            model,
            transport,
            Options(
                budget_s=budget_s,
                objective=objective,
                seeds=seeds,
                seed=seed,
                settings=settings,
                local_steps=lengths,
                profile=known_profile,
                network=known_network,
                find_unused_parameters=find_unused_parameters,
                progress=progress,
            ),
            save=lambda best: best.save(folder),
        )
    finish(tuned.tuning, folder / TUNING_FILE, json)
    if place().rank == 0:
        known = tuned.profile, tuned.network
        solved = (posed(p, *known, Settings.of(p)) for p in tuned.plans.values())
        for remark in beyond_samples(tuned.network, solved):
            screen.say(remark)


@contextmanager
def _best_is_told(folder: Path) -> Iterator[None]:
    """Say, if it is interrupted, that ``folder`` has the best so far, once it has."""
    plan = folder / TUNED_FILE
    before = _changed_ns(plan)
    try:
        yield
    except KeyboardInterrupt:
        if place().rank == 0 and _changed_ns(plan) != before:
            screen.say(f"interrupted: the best so far is {plan}")
        raise


def _changed_ns(path: Path) -> int | None:
    """Return when the file at ``path`` was last changed; None: it is not there."""
    return path.stat().st_mtime_ns if path.exists() else None
