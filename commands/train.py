"""``comm-plan train``: a workload, trained by a plan."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from comm_plan import screen
from comm_plan.commands import arguments, launching
from comm_plan.commands.options import (
    FindUnusedParameters,
    Json,
    OptimizerChanges,
    Ranks,
    Training,
    WorkloadArgument,
    WorkloadOptions,
    from_documents,
    grouped,
    refuse_given,
)
from comm_plan.commands.output import finish
from comm_plan.commands.planned import (
    compare_conditions,
    plan_for_these,
    refuse_diagnostics,
    refuse_warmup,
)
from comm_plan.commands.workload import files_of, load_workload
from comm_plan.errors import InputError
from comm_plan.transports.ranks import TIMEOUT_S, place

if TYPE_CHECKING:
    from comm_plan.runtime.engine import Engine
    from comm_plan.runtime.trainer import Event


@grouped
def train(
    *,
    context: typer.Context,
    workload: WorkloadArgument,
    plan: Annotated[Path, typer.Option("--plan", help="What solve wrote.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The run record.")
    ] = Path("run.json"),
    changes: WorkloadOptions,
    optimizer: OptimizerChanges,
    training: Training,
    ranks: Ranks,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints.")
    ] = None,
    checkpoint_every: Annotated[
        int,
        typer.Option(
            min=0, help="Steps between two. 0: only after epochs and at the end."
        ),
    ] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint.")
    ] = False,
    on_nonfinite: Annotated[
        Literal["stop", "skip"],
        typer.Option(help="What to do on a gradient with inf or NaN."),
    ] = "stop",
    find_unused_parameters: FindUnusedParameters = False,
    second_moments: Annotated[
        str | None,
        typer.Option(
            metavar="exact|micro-batches:N",
            help="Where vgc and hybrid get per-sample second moments from. Default: "
            "exact where they can be had.",
        ),
    ] = None,
    diagnostics: Annotated[
        Path | None,
        typer.Option(
            help="Write residual norms and LAGS's delta to FILE.jsonl, or to a folder "
            "for TensorBoard."
        ),
    ] = None,
    diagnostics_every: Annotated[int, typer.Option(min=1, help="Steps.")] = 10,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds a collective may take.")
    ] = TIMEOUT_S,
    adapt: Annotated[
        tuple[Path, Path] | None,
        from_documents(
            "--adapt",
            "Solve again when the run is not as predicted: the plan's documents.",
        ),
    ] = None,
    elastic: Annotated[
        tuple[Path, Path] | None,
        from_documents(
            "--elastic",
            "Go on from a checkpoint if there is one, on any number of ranks, with a "
            "plan solved again for them from these documents.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Train by the plan; compare the measured times with the predicted ones."""
    from comm_plan.plans import Plan, check_writable

    planned = Plan.load(plan)
    ranks = launching.as_planned(ranks, {plan: planned}, elastic=elastic is not None)
    if (resume or elastic) and checkpoint is None:
        needs = "--resume" if resume else "--elastic"
        raise InputError(f"{needs} needs --checkpoint FOLDER to go on from")
    if checkpoint_every and checkpoint is None:
        raise InputError("--checkpoint-every needs --checkpoint FOLDER to write to")
    if diagnostics is None:
        refuse_given(context, {"diagnostics_every"}, "it is for --diagnostics")
    elif diagnostics.resolve() == output.resolve():
        raise InputError(f"{output}: -o and --diagnostics: give each a file of its own")
    read = [plan, *files_of(workload), *(adapt or ()), *(elastic or ())]
    check_writable(output, unlike=read)
    moments = arguments.micro_batches(second_moments)
    learning_rate = arguments.learning_rate(training)
    density_warmup = arguments.density_warmup(training)
    if adapt is None:  # which may compress later
        refuse_warmup(density_warmup, [planned])
        if diagnostics is not None:
            refuse_diagnostics(planned)
    launching.start_ranks(context, ranks)
    from comm_plan.runtime.agreement import check_plan
    from comm_plan.runtime.trainer import Options
    from comm_plan.runtime.trainer import train as run

    chosen = plan_for_these(plan, planned, ranks, elastic)
    model = load_workload(workload, changes, optimizer, training.seed)
    check_plan(chosen, model.model, place().world_size)
    compare_conditions(plan, chosen, model)
    total = training.steps if training.epochs is None else None
    with (
        launching.connected(ranks, timeout_s) as transport,
        screen.training_progress(total) as show,
    ):
        watchers = [show]
        if diagnostics is not None:
            from comm_plan.runtime.diagnostics import writer

            watchers.append(writer(diagnostics, diagnostics_every))

        def watch(event: Event, engine: Engine) -> None:
            for watcher in watchers:
                watcher(event, engine)

        def on_engine(engine: Engine) -> AbstractContextManager[object]:
            if adapt is None:
                return nullcontext()
            from comm_plan import adapt as follow

            profile, network = map(str, adapt)
            return closing(follow(engine, profile, network))

        record = run(
            model,
            chosen,
            transport,
            Options(
                epochs=training.epochs,
                steps=training.steps,
                seed=training.seed,
                learning_rate=learning_rate,
                checkpoint=checkpoint,
                checkpoint_every=checkpoint_every,
                resume=resume,
                elastic=elastic is not None,
                on_nonfinite=on_nonfinite,
                find_unused_parameters=find_unused_parameters,
                micro_batches=moments,
                density_warmup=density_warmup,
                watcher=watch,
                on_engine=on_engine,
                agreed={
                    "option clip_norm": optimizer.clip_norm,
                    "option adapt": adapt is not None,
                    "option diagnostics": diagnostics is not None,
                    "option diagnostics_every": diagnostics_every,
                    "option emulate_link": ranks.emulate_link,
                },
            ),
        )
    if record.iterations_s or not output.exists():
        finish(record, output, json)
    elif place().rank == 0:
        screen.say(f"nothing was left to do: {output} stays as it is")
