"""``comm-plan solve``: the plan of a profile and a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comm_plan import screen
from comm_plan.commands import arguments
from comm_plan.commands.options import (
    OPTIMAL,
    AccuracyClass,
    AlgorithmOption,
    CompressorOption,
    CompressorOptions,
    DenseLayers,
    ExportTarget,
    Json,
    LinkSpeed,
    LocalStepsOption,
    MaxRatio,
    MinGain,
    NetworkArgument,
    OuterMomentum,
    OuterRate,
    ProfileArgument,
    SolverName,
    Tolerance,
    WorldSize,
    refuse_given,
)
from comm_plan.planner.solvers import (
    BASELINES,
    CHOOSING,
    MAX_RATIO,
    MIN_GAIN,
    SOLVERS,
    TOLERANCE,
)


def solve(
    context: typer.Context,
    profile: ProfileArgument,
    network: NetworkArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File for the plan.")
    ] = Path("plan.json"),
    solver: Annotated[
        SolverName,
        typer.Option(help="lags, slgs and auto choose compression; others send dense."),
    ] = OPTIMAL,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show every solver, not only baselines.")
    ] = False,
    world_size: WorldSize = None,
    algorithm: AlgorithmOption = None,
    compressor: CompressorOption = None,
    options: CompressorOptions = None,
    dense_layers: DenseLayers = None,
    accuracy: AccuracyClass = None,
    allow: Annotated[
        str | None,
        typer.Option(help="What auto may use whatever it loses, comma-separated."),
    ] = None,
    max_ratio: MaxRatio = MAX_RATIO,
    tolerance: Tolerance = TOLERANCE,
    min_gain: MinGain = MIN_GAIN,
    literal: Annotated[
        bool, typer.Option("--literal", help="lags: Eq. 19 as printed.")
    ] = False,
    momentum_correction: Annotated[
        bool,
        typer.Option(
            "--momentum-correction",
            help="SGD's momentum goes before compression; sparse methods gain by it.",
        ),
    ] = False,
    local_steps: LocalStepsOption = None,
    outer_lr: OuterRate = 1.0,
    outer_momentum: OuterMomentum = 0.0,
    threshold: Annotated[
        str, typer.Option(help="Cap of threshold: ddp, horovod, or bytes.")
    ] = "ddp",
    link_gbits: LinkSpeed = None,
    export: Annotated[
        ExportTarget | None,
        typer.Option(
            help="Also write the plan for stock DDP or Horovod, as OUTPUT_ddp.py or "
            "OUTPUT_horovod.py."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compute the plan, and say what it brings."""
    from comm_plan.planner import Settings, make_problem, summarise
    from comm_plan.planner.threshold import caps
    from comm_plan.plans import Network, Profile, check_writable
    from comm_plan.plans.export import EXPORTS
    from comm_plan.plans.files import write_atomically
    from comm_plan.report.solvers import solver_table

    check_writable(output, unlike=[profile, network])
    if solver.value != "lags":
        refuse_given(context, {"literal"}, "it is for --solver lags")
    if not compare and solver.value != CHOOSING:
        refuse_given(
            context, {"allow", "accuracy", "min_gain"}, "it is for --solver auto"
        )
    if not compare and not SOLVERS[solver.value].chooses_compression:
        why = "it is for solvers that choose ratios: lags, slgs, auto"
        refuse_given(context, {"max_ratio"}, why)
        if compressor is None:
            refuse_given(context, {"dense_layers"}, "it is for plans that compress")
    if world_size is None:
        refuse_given(context, {"algorithm"}, "it is for --world-size")
    if local_steps is None:
        why = "it is for --local-steps"
        refuse_given(context, {"outer_lr", "outer_momentum"}, why)
    settings = Settings(
        world_size=world_size,
        algorithm=arguments.value(algorithm),
        link_bytes_per_s=arguments.bytes_per_s(link_gbits),
        compressor=arguments.value(compressor),
        options=arguments.pairs(options),
        dense_layers=arguments.names(dense_layers),
        caps_nbytes=caps(threshold),
        max_ratio=max_ratio,
        allow=arguments.names(allow),
        accuracy=accuracy or Settings.accuracy,
        tolerance=tolerance,
        min_gain=min_gain,
        literal=literal,
        momentum_correction=momentum_correction,
        local_steps=arguments.local_steps(local_steps, outer_lr, outer_momentum),
    )
    problem = make_problem(Profile.load(profile), Network.load(network), settings)
    beside = SOLVERS if compare else BASELINES
    summary = summarise(problem, [solver.value], beside)
    plan = summary.plan(solver.value)
    exported = EXPORTS[export.value](plan) if export else None
    plan.save(output)
    if json:
        print(plan.to_json(), end="")
    screen.show(solver_table(summary, chosen=summary.row(solver.value)))
    for name, reason in summary.left_out.items():
        screen.say(f"{name} is left out: {reason}")
    for remark in summary.remarks(plan):
        screen.say(remark)
    screen.say(summary.verdict)
    screen.say(summary.judgement(solver.value))
    screen.say(f"wrote {output}")
    if export and exported:
        # No further dot, which Python could not import.
        path = output.with_name(f"{output.stem}_{export.value}.py")
        write_atomically(path, exported)
        screen.say(f"wrote {path}")
