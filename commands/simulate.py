"""``comm-plan simulate``: other numbers of ranks."""

from __future__ import annotations

from typing import Annotated

import typer

from comm_plan import screen, units
from comm_plan.commands import arguments
from comm_plan.commands.options import (
    AlgorithmOption,
    CompressorOption,
    CompressorOptions,
    DenseLayers,
    LinkSpeed,
    MaxRatio,
    NetworkArgument,
    ProfileArgument,
    refuse_given,
)
from comm_plan.errors import InputError
from comm_plan.planner.solvers import (
    BASELINES,
    MAX_RATIO,
    MERGED,
    SOLVERS,
    TOLERANCE,
)


def simulate(
    context: typer.Context,
    profile: ProfileArgument,
    network: NetworkArgument,
    world_sizes: Annotated[
        str, typer.Option("--world-sizes", help="Comma-separated numbers of ranks.")
    ] = "2,4,8,16,32,64",
    solvers: Annotated[str, typer.Option(help="Comma-separated, or all.")] = ",".join(
        BASELINES
    ),
    algorithm: AlgorithmOption = None,
    compressor: CompressorOption = None,
    options: CompressorOptions = None,
    by_layer: Annotated[
        bool, typer.Option("--by-layer", help="Plan layers, not single tensors.")
    ] = False,
    link_gbits: LinkSpeed = None,
    dense_layers: DenseLayers = None,
    max_ratio: MaxRatio = MAX_RATIO,
) -> None:
    """Ask what if: each solver's iteration time on other numbers of ranks."""
    from comm_plan.planner import Settings
    from comm_plan.planner.remarks import beyond_samples
    from comm_plan.planner.what_if import what_if
    from comm_plan.plans import Network, Profile
    from comm_plan.report.solvers import speedup_table, what_if_table

    measured, cluster = Profile.load(profile), Network.load(network)
    names = arguments.solvers(solvers)
    if not names:
        raise InputError(f"--solvers {solvers!r}: give names, comma-separated, or all")
    if not any(SOLVERS[name].chooses_compression for name in names if name in SOLVERS):
        why = "it is for solvers that choose ratios: lags, slgs, auto (--solvers)"
        refuse_given(context, {"max_ratio"}, why)
        if compressor is None:
            refuse_given(context, {"dense_layers"}, "it is for plans that compress")
    found = what_if(
        measured.by_layer() if by_layer else measured,
        cluster,
        arguments.whole_numbers("--world-sizes", world_sizes),
        names,
        Settings(
            algorithm=arguments.value(algorithm),
            compressor=arguments.value(compressor),
            options=arguments.pairs(options),
            link_bytes_per_s=arguments.bytes_per_s(link_gbits),
            dense_layers=arguments.names(dense_layers),
            max_ratio=max_ratio,
        ),
    )
    screen.answer(what_if_table(found.summaries, names, cluster.world_size))
    screen.answer(speedup_table(found.summaries, names))
    if MERGED in names:
        screen.say(
            f"{MERGED}: the fewest messages within {units.percent(TOLERANCE)} of the "
            "best time"
        )
    solved = ((s.problem, row.solution) for s in found.summaries for row in s.rows)
    for remark in (*found.remarks, *beyond_samples(cluster, solved)):
        screen.say(remark)
