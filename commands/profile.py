"""``comm-plan profile``: a model, measured or made up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comm_plan import screen
from comm_plan.commands import arguments, launching
from comm_plan.commands.options import (
    WORKLOAD,
    FindUnusedParameters,
    Json,
    OptimizerChanges,
    Ranks,
    WorkloadOptions,
    fields_of,
    grouped,
    refuse_given,
)
from comm_plan.commands.output import finish
from comm_plan.commands.workload import files_of, load_workload
from comm_plan.errors import InputError, one_line
from comm_plan.plans.problems import LONGEST_VALUE
from comm_plan.transports.ranks import place

if TYPE_CHECKING:
    from comm_plan.plans import Profile


@grouped
def profile(
    *,
    context: typer.Context,
    workload: Annotated[str | None, WORKLOAD] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File for the profile.")
    ] = Path("profile.json"),
    changes: WorkloadOptions,
    optimizer: OptimizerChanges,
    iterations: Annotated[
        int | None,
        typer.Option(
            min=20, help="That are timed. Default: 40, more if they are short."
        ),
    ] = None,
    compressors: Annotated[
        str,
        typer.Option(
            help="Cost them on the device: all, none, or names as of solve "
            "--compressor, comma-separated. What is sent as it is always is costed."
        ),
    ] = "all",
    find_unused_parameters: FindUnusedParameters = False,
    from_model: Annotated[
        str | None,
        typer.Option(metavar="WORKLOAD", help="Do not measure: count its operations."),
    ] = None,
    flops_per_s: Annotated[
        float | None,
        typer.Option("--flops-per-s", help="Speed of the device for --from-model."),
    ] = None,
    from_csv: Annotated[
        Path | None,
        typer.Option(help="Do not measure: layer,numel,forward_s,backward_s a line."),
    ] = None,
    ranks: Ranks,
    json: Json = False,
) -> None:
    """Measure when each gradient is ready, and what compressors cost."""
    if sum(source is not None for source in (workload, from_model, from_csv)) != 1:
        raise InputError("give one of WORKLOAD, --from-model and --from-csv")
    if (from_model is None) != (flops_per_s is None):
        raise InputError("--from-model and --flops-per-s go together")
    from comm_plan.plans import check_writable

    read = [from_csv] if from_csv else files_of(workload or from_model or "")
    check_writable(output, unlike=read)
    if workload is None:
        unmeasured = {
            "iterations",
            "compressors",
            "find_unused_parameters",
            *fields_of(Ranks),
        }
        refuse_given(context, unmeasured, "it is for profiles that are measured")
        if from_csv is not None:
            no_model = {*fields_of(WorkloadOptions, OptimizerChanges)} - {"batch_size"}
            refuse_given(context, no_model, "it is not for --from-csv")
        made = _made_up(from_model, flops_per_s, from_csv, changes, optimizer)
        finish(made, output, json)
        return
    kinds = arguments.kinds_of(compressors)
    launching.start_ranks(context, ranks)
    from comm_plan.profiler import measure

    model = load_workload(workload, changes, optimizer)
    with (
        launching.connected(ranks) as transport,
        screen.progress() as progress,
    ):
        measured = measure(
            model,
            transport,
            kinds=kinds,
            iterations=iterations,
            find_unused_parameters=find_unused_parameters,
            progress=progress,
        )
    if place().rank == 0 and not find_unused_parameters:
        _tell_of_unused(measured)
    finish(measured, output, json)


def _tell_of_unused(profile: Profile) -> None:
    """Say what training will have to be told, if parameters got no gradient."""
    if names := profile.environment.get("unused"):
        screen.say(
            f"no gradient came for {one_line(names, LONGEST_VALUE)}: train with "
            "--find-unused-parameters (in your own loop: find_unused_parameters=True)"
        )


def _made_up(
    model: str | None,
    flops_per_s: float | None,
    layer_times: Path | None,
    changes: WorkloadOptions,
    optimizer: OptimizerChanges,
) -> Profile:
    """Return a profile that is not measured."""
    from comm_plan.profiler import profile_from_layer_times, profile_from_speed

    if layer_times is not None:
        return profile_from_layer_times(layer_times, batch_size=changes.batch_size or 1)
    assert model is not None and flops_per_s is not None
    return profile_from_speed(load_workload(model, changes, optimizer), flops_per_s)
