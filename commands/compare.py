"""``comm-plan compare``: a workload, trained by several plans in turns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comm_plan import screen
from comm_plan.commands import arguments, launching
from comm_plan.commands.options import (
    FindUnusedParameters,
    OptimizerChanges,
    Ranks,
    Training,
    WorkloadArgument,
    WorkloadOptions,
    grouped,
)
from comm_plan.commands.planned import (
    compare_conditions,
    plan_for_these,
    refuse_warmup,
)
from comm_plan.commands.workload import files_of, load_workload
from comm_plan.transports.ranks import place

if TYPE_CHECKING:
    from comm_plan.runtime.engine import Engine
    from comm_plan.runtime.trainer import Event


@grouped
def compare(
    *,
    context: typer.Context,
    workload: WorkloadArgument,
    plans: Annotated[list[Path], typer.Argument(metavar="PLAN...")],
    folder: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for the run records.")
    ] = Path(),
    target: Annotated[
        float | None, typer.Option(help="Also show the time to this accuracy or loss.")
    ] = None,
    changes: WorkloadOptions,
    optimizer: OptimizerChanges,
    training: Training,
    find_unused_parameters: FindUnusedParameters = False,
    ranks: Ranks,
) -> None:
    """Train by several plans at once, in turns: was it worth it?"""
    from comm_plan.plans import Plan, check_writable
    from comm_plan.plans.files import make_folder

    names = arguments.names_of(plans, "plan-")
    planned = {path: Plan.load(path) for path in plans}
    ranks = launching.as_planned(ranks, planned)
    make_folder(folder)
    outputs = [folder / f"run-{name}.json" for name in names]
    for output in outputs:
        check_writable(output, unlike=[*plans, *files_of(workload)])
    learning_rate = arguments.learning_rate(training)
    density_warmup = arguments.density_warmup(training)
    refuse_warmup(density_warmup, planned.values())
    launching.start_ranks(context, ranks)
    from comm_plan.report.comparison import comparison
    from comm_plan.runtime.agreement import check_plan
    from comm_plan.runtime.side_by_side import train_side_by_side
    from comm_plan.runtime.trainer import Options

    chosen = [plan_for_these(path, plan, ranks) for path, plan in planned.items()]
    model = load_workload(workload, changes, optimizer, training.seed)
    for path, plan in zip(plans, chosen, strict=True):
        check_plan(plan, model.model, place().world_size)
        compare_conditions(path, plan, model)
    with (
        launching.connected(ranks) as transport,
        screen.progress() as progress,
    ):

        def watch(event: Event, engine: Engine) -> None:
            what = f"{engine.plan.label}, loss {event.loss:.4f}"
            progress(event.step, training.steps, what)

        options = Options(
            epochs=training.epochs,
            steps=training.steps,
            seed=training.seed,
            learning_rate=learning_rate,
            find_unused_parameters=find_unused_parameters,
            density_warmup=density_warmup,
            watcher=watch,
            agreed={
                "option clip_norm": optimizer.clip_norm,
                "option emulate_link": ranks.emulate_link,
            },
        )
        records = train_side_by_side(model, chosen, transport, options)
    if place().rank == 0:
        for output, record in zip(outputs, records, strict=True):
            record.save(output)
        pairs = list(zip(names, records, strict=True))
        screen.show(comparison(pairs, target, how="side by side, in turns"))
        if target is not None and not any(record.evaluations for record in records):
            screen.say(
                f"--target {target:g}: no run has a metric: give the workload an "
                "evaluate function whose values are not inf or NaN"
            )
        screen.say(f"wrote {', '.join(map(str, outputs))}")
