"""The command line: each verb parses, calls one function of a room, and prints.

Results go to files, progress and tables to stderr; ``--json`` prints the result to
stdout. Heavy imports wait inside the verbs, so that ``--help`` is instant.

Under torchrun, mpirun or srun every rank runs the same command and finds its rank in
the environment; ``--local-ranks N`` starts N ranks on this host.

Exit codes: 0 done, 1 a run failed, 2 bad input; one line says why, on the rank that
knows (``--debug`` shows the traceback). Bad input is mostly found by all ranks, and a
launcher ends them when the first one leaves: so rank 0 says it at once, and any other
that is still there a second later says it too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import (
    AbstractContextManager,
    closing,
    nullcontext,
)
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn, cast

import typer

from comm_plan import __version__, arguments, launching, screen
from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.errors import CommPlanError, InputError
from comm_plan.options import (
    OPTIMAL,
    WORKLOAD,
    AccuracyClass,
    AlgorithmOption,
    CompressorOption,
    CompressorOptions,
    DenseLayers,
    ExportTarget,
    FindUnusedParameters,
    Json,
    LinkSpeed,
    LocalStepsOption,
    MaxRatio,
    NetworkArgument,
    OptimizerChanges,
    OuterMomentum,
    OuterRate,
    ProfileArgument,
    Ranks,
    SolverName,
    Tolerance,
    Training,
    WorkloadArgument,
    WorkloadOptions,
    WorldSize,
    fields_of,
    grouped,
    refuse_given,
)
from comm_plan.planner.solvers import BASELINES, SOLVERS
from comm_plan.plans.document import MAX_RANKS, MAX_SEED, YEAR_S
from comm_plan.transports.ranks import RANK_0_FIRST_S, place, place_in_errors

if TYPE_CHECKING:
    from comm_plan.plans import Document, EmulatedLink, Network, Plan, Profile
    from comm_plan.runtime.engine import Engine
    from comm_plan.runtime.trainer import Event
    from comm_plan.transports.base import Transport
    from comm_plan.workloads import Workload

app = typer.Typer(
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Plan and tune the communication of distributed deep learning.",
)


def _version(asked: bool) -> None:
    if asked:
        print(f"comm-plan {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks of errors.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print and exit."
        ),
    ] = False,
) -> None:
    if debug:
        os.environ["COMM_PLAN_DEBUG"] = "1"


@app.command()
@grouped
def profile(
    *,
    context: typer.Context,
    workload: Annotated[str | None, WORKLOAD] = None,
    output: Annotated[Path, typer.Option("-o", "--output")] = Path("profile.json"),
    changes: WorkloadOptions,
    optimizer: OptimizerChanges,
    iterations: Annotated[
        int | None,
        typer.Option(
            min=1, help="Timed; at least 20. Default: 40, more if they are short."
        ),
    ] = None,
    compressors: Annotated[
        str,
        typer.Option(
            help="Cost them on the device: all, none, or names as of solve "
            "--compressor, comma-separated."
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
        _finish(made, output, json)
        return
    launching.start_ranks(context, ranks)
    from comm_plan.plans import check_writable
    from comm_plan.profiler import measure

    check_writable(output)
    kinds = arguments.kinds_of(compressors)
    model = _load(workload, changes, optimizer)
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
    _finish(measured, output, json)


@app.command()
@grouped
def benchmark_network(
    *,
    context: typer.Context,
    output: Annotated[Path, typer.Option("-o", "--output")] = Path("network.json"),
    ranks: Ranks,
    collectives: Annotated[
        str | None, typer.Option(help="Comma-separated. Default: all.")
    ] = None,
    max_nbytes: Annotated[
        int, typer.Option("--max-bytes", min=4, help="Largest message.")
    ] = 64 * 1024 * 1024,
    budget_s: Annotated[
        float,
        typer.Option(
            "--budget", min=0, max=YEAR_S, help="About so many seconds in all."
        ),
    ] = 90.0,
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

        measured = load(
            imported, world_size=world_size, backend=arguments.value(ranks.backend)
        )
    else:
        refuse_given(context, {"world_size"}, "it is for --import")
        launching.start_ranks(context, ranks)
        check_writable(output)
        with launching.connected(ranks) as transport:
            measured = _sweep(transport, collectives, max_nbytes, budget_s)
    _finish(measured, output, json)


@app.command()
def solve(
    context: typer.Context,
    profile: ProfileArgument,
    network: NetworkArgument,
    output: Annotated[Path, typer.Option("-o", "--output")] = Path("plan.json"),
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
    max_ratio: MaxRatio = None,
    tolerance: Tolerance = 0.01,
    literal: Annotated[
        bool, typer.Option("--literal", help="lags: Eq. 18 and 19 as printed.")
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
            help="Also write the plan for stock DDP or Horovod, as OUTPUT.ddp.py or "
            "OUTPUT.horovod.py."
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

    check_writable(output)
    if solver.value != "lags":
        refuse_given(context, {"literal"}, "it is for --solver lags")
    if not compare and solver.value != "auto":
        refuse_given(context, {"allow", "accuracy"}, "it is for --solver auto")
    if not compare and not SOLVERS[solver.value].chooses_compression:
        why = "it is for solvers that choose ratios: lags, slgs, auto"
        refuse_given(context, {"max_ratio"}, why)
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
        max_ratio=max_ratio or Settings.max_ratio,
        allow=arguments.names(allow),
        accuracy=accuracy or "noise",
        tolerance=tolerance,
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
        path = output.with_suffix(f".{export.value}.py")
        write_atomically(path, exported)
        screen.say(f"wrote {path}")


@app.command()
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
            help="Where vgc and hybrid get per-sample second moments from. [default: "
            "exact where they can be had]",
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
    ] = 300.0,
    adapt: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            "--adapt",
            metavar="PROFILE NETWORK",
            help="Solve again when the run is not as predicted: the plan's documents.",
        ),
    ] = None,
    elastic: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            "--elastic",
            metavar="PROFILE NETWORK",
            help="Go on from a checkpoint if there is one, on any number of ranks, "
            "with a plan solved again for them from these documents.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Train by the plan; compare the measured times with the predicted ones."""
    ranks = launching.as_planned(ranks, plan)
    launching.start_ranks(context, ranks)
    from comm_plan.plans import check_writable
    from comm_plan.runtime.agreement import check_plan
    from comm_plan.runtime.trainer import Options
    from comm_plan.runtime.trainer import train as run

    if (resume or elastic) and checkpoint is None:
        needs = "--resume" if resume else "--elastic"
        raise InputError(f"{needs} needs --checkpoint FOLDER to go on from")
    if checkpoint_every and checkpoint is None:
        raise InputError("--checkpoint-every needs --checkpoint FOLDER to write to")
    check_writable(output)
    chosen = _plan_for_these(plan, elastic, launching.link_of(ranks))
    model = _load(workload, changes, optimizer, training.seed)
    check_plan(chosen, model.model, place().world_size)
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
                learning_rate=arguments.learning_rate(training),
                checkpoint=checkpoint,
                checkpoint_every=checkpoint_every,
                resume=resume,
                elastic=elastic is not None,
                on_nonfinite=on_nonfinite,
                find_unused_parameters=find_unused_parameters,
                micro_batches=arguments.micro_batches(second_moments),
                density_warmup=arguments.density_warmup(training.density_warmup),
                watcher=watch,
                on_engine=on_engine,
                agreed={
                    "option adapt": adapt is not None,
                    "option diagnostics": diagnostics is not None,
                    "option diagnostics_every": diagnostics_every,
                    "option emulate_link": ranks.emulate_link,
                },
            ),
        )
    if record.iterations_s or not output.exists():
        _finish(record, output, json)
    elif place().rank == 0:
        screen.say(f"nothing was left to do: {output} stays as it is")


@app.command()
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
    ranks = launching.as_planned(ranks, plans[0])
    launching.start_ranks(context, ranks)
    from comm_plan.plans import check_writable
    from comm_plan.plans.files import make_folder
    from comm_plan.report.comparison import comparison
    from comm_plan.runtime.side_by_side import train_side_by_side
    from comm_plan.runtime.trainer import Options

    make_folder(folder)
    names = arguments.names_of(plans, "plan-")
    outputs = [folder / f"run-{name}.json" for name in names]
    for output in outputs:
        check_writable(output)
    link = launching.link_of(ranks)
    chosen = [_plan_for_these(plan, None, link) for plan in plans]
    model = _load(workload, changes, optimizer, training.seed)
    with (
        launching.connected(ranks) as transport,
        screen.progress() as progress,
    ):

        def watch(event: Event, engine: Engine) -> None:
            what = f"{engine.plan.solver}, loss {event.loss:.4f}"
            progress(event.step, training.steps, what)

        options = Options(
            epochs=training.epochs,
            steps=training.steps,
            seed=training.seed,
            learning_rate=arguments.learning_rate(training),
            find_unused_parameters=find_unused_parameters,
            density_warmup=arguments.density_warmup(training.density_warmup),
            watcher=watch,
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
                "evaluate function"
            )
        screen.say(f"wrote {', '.join(map(str, outputs))}")


@app.command()
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
    ] = 300.0,
    objective: Annotated[
        Literal["time", "loss"],
        typer.Option(help="Shortest iterations, or the loss that falls fastest."),
    ] = "time",
    seeds: Annotated[int, typer.Option(min=1, help="Trainings to judge loss by.")] = 3,
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
    max_ratio: MaxRatio = None,
    tolerance: Tolerance = 0.01,
    find_unused_parameters: FindUnusedParameters = False,
    ranks: Ranks,
    json: Json = False,
) -> None:
    """Try the plans that could be best on your own model; say which to run."""
    if objective != "loss":
        refuse_given(context, {"seeds", "local_steps"}, "it is for --objective loss")
    launching.start_ranks(context, ranks)
    from comm_plan.planner import Settings
    from comm_plan.plans import Network, Profile
    from comm_plan.plans.files import make_folder
    from comm_plan.tuner.session import Options
    from comm_plan.tuner.tune import tune as run

    make_folder(folder)
    model = _load(workload, changes, optimizer, seed)
    with (
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
                settings=Settings(
                    dense_layers=arguments.names(dense_layers),
                    max_ratio=max_ratio or Settings.max_ratio,
                    allow=arguments.names(allow),
                    accuracy=accuracy or ("loss" if objective == "loss" else "noise"),
                    tolerance=tolerance,
                ),
                rounds=arguments.numbers("--local-steps", local_steps, int)
                if local_steps
                else (),
                profile=None if profile is None else Profile.load(profile),
                network=None if network is None else Network.load(network),
                find_unused_parameters=find_unused_parameters,
                progress=progress,
            ),
            save=lambda best: best.save(folder),
        )
    _finish(tuned.tuning, folder / "tuning.json", json)


@app.command()
def simulate(
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
    max_ratio: MaxRatio = None,
) -> None:
    """Ask what if: each solver's iteration time on other numbers of ranks."""
    from comm_plan.planner import Settings
    from comm_plan.planner.what_if import what_if
    from comm_plan.plans import Network, Profile
    from comm_plan.report.solvers import speedup_table, what_if_table

    measured, cluster = Profile.load(profile), Network.load(network)
    names = arguments.solvers(solvers)
    found = what_if(
        measured.by_layer() if by_layer else measured,
        cluster,
        arguments.numbers("--world-sizes", world_sizes, int),
        names,
        Settings(
            algorithm=arguments.value(algorithm),
            compressor=arguments.value(compressor),
            options=arguments.pairs(options),
            link_bytes_per_s=arguments.bytes_per_s(link_gbits),
            dense_layers=arguments.names(dense_layers),
            max_ratio=max_ratio or Settings.max_ratio,
        ),
    )
    screen.show(what_if_table(found.summaries, names, cluster.world_size))
    screen.show(speedup_table(found.summaries, names))
    for remark in found.remarks:
        screen.say(remark)


@app.command()
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

        screen.show(TerminalTimelines(reporting.draw(documents, names, world_size)))
        return
    reporting.write(documents, output, names, world_size)
    screen.say(f"wrote {output}")


@app.command()
def show(
    documents: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Of any kind; several run records side by side."
        ),
    ],
    target: Annotated[
        float | None,
        typer.Option(help="Value of the metric: when did each run reach it?"),
    ] = None,
) -> None:
    """Say what a profile, network, plan, run record or tuning holds."""
    from comm_plan.plans import RunRecord, load_document
    from comm_plan.report.comparison import comparison
    from comm_plan.report.tables import tables

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


@app.command()
def reproduce(
    output: Annotated[Path, typer.Option("-o", "--output")] = Path("reproduction.md"),
    models_only: Annotated[
        bool, typer.Option("--models-only", help="Do not train: as was trained before.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option("--trainings", help="Where trainings are kept. [default: none]"),
    ] = None,
) -> None:
    """Set the papers' figures beside ours, on a page; trains for some minutes."""
    from rich.markdown import Markdown

    from comm_plan.plans import check_writable
    from comm_plan.plans.files import write_atomically
    from comm_plan.reproduction.page import reproduced

    check_writable(output)
    text = reproduced(folder, train=not models_only, progress=screen.say)
    write_atomically(output, text)
    screen.show(Markdown(text))
    screen.say(f"wrote {output}")


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("-o", "--output")] = Path("demo-output"),
    ranks: Annotated[
        int | None,
        typer.Option("--local-ranks", min=2, help="Default: a core each, 2 to 4."),
    ] = None,
) -> None:
    """Run the whole loop on this machine: profile, network, plan, training."""
    from comm_plan.demo import a_core_each, run

    code = run(folder, ranks or a_core_each())
    if code:
        raise typer.Exit(code)


# Around the verbs


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Args:
        arguments: the words after the command's name; None: this process's own.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    # Torch prints what it also raises, with frames of C++, on every rank.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    try:
        code = app(words or ["--help"], "comm-plan", obj=words, standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except CommPlanError as error:
        _fail(error, error.exit_code)
    except Exception as error:
        refused = _misused(error)
        _fail(refused or error, 2 if refused else 1)
    sys.exit(code or 0)


def _misused(error: Exception) -> InputError | None:
    """Return what the parser of words says of them, None if it is no such error."""
    usage_error = typer.BadParameter.__bases__  # wherever this typer keeps click
    if not isinstance(error, usage_error):
        return None
    misuse = cast("typer.BadParameter", error)
    path = misuse.ctx.command_path if misuse.ctx else "comm-plan"
    said = misuse.format_message().rstrip(".")
    return InputError(f"{said}: {path} --help lists what there is")


def _fail(error: BaseException, code: int) -> NoReturn:
    """Say what is wrong and leave; with bad input rank 0 goes first."""
    if place_in_errors().rank > 0 and isinstance(error, InputError):
        time.sleep(RANK_0_FIRST_S)
    screen.explain(error)
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread may still sit in a collective that will never end.
    os._exit(code)


def _load(
    workload: str,
    changes: WorkloadOptions,
    optimizer: OptimizerChanges,
    seed: int = 0,
) -> Workload:
    """Return the workload that is meant, its own in all that nobody changes."""
    from comm_plan.workloads import load
    from comm_plan.workloads.optimizer import OptimizerOptions, with_optimizer

    given = {name: value for name, value in vars(changes).items() if value is not None}
    other = {**vars(optimizer), "optimizer": arguments.value(optimizer.optimizer)}
    return with_optimizer(load(workload, seed=seed, **given), OptimizerOptions(**other))


def _plan_for_these(
    path: Path, elastic: tuple[Path, Path] | None, link: EmulatedLink | None
) -> Plan:
    """Return the plan, solved again if it may be and is for another number of ranks.

    What is not as the plan has it is said by rank 0.
    """
    from comm_plan.planner import replan
    from comm_plan.plans import Network, Plan, Profile
    from comm_plan.plans.link import link_text

    here, plan = place(), Plan.load(path)
    said = []
    if elastic is not None and here.world_size != plan.world_size:
        said.append(
            f"solved again for {here.world_size} ranks: the plan is for "
            f"{plan.world_size}"
        )
        documents = Profile.load(elastic[0]), Network.load(elastic[1])
        plan = replan(plan, *documents, here.world_size)
    if plan.emulated_link != link:
        said.append(
            f"{path} is for {link_text(plan.emulated_link)}, this run is on "
            f"{link_text(link)}"
        )
    for line in said if here.rank == 0 else ():
        screen.say(line)
    return plan


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
    return profile_from_speed(_load(model, changes, optimizer), flops_per_s)


def _sweep(
    transport: Transport, collectives: str | None, max_nbytes: int, budget_s: float
) -> Network:
    from comm_plan.commbench.sweep import geometric_sizes, measure

    with screen.progress() as progress:
        return measure(
            transport,
            collectives=arguments.names(collectives) or tuple(COLLECTIVES),
            sizes=geometric_sizes(largest=max_nbytes),
            budget_s=budget_s,
            progress=progress,
        )


def _finish(document: Document, output: Path, json: bool) -> None:
    """Write and show a result, on rank 0."""
    from comm_plan.report.tables import tables

    if place().rank > 0:
        return
    document.save(output)
    if json:
        print(document.to_json(), end="")
    for table in tables(document, briefly=True):
        screen.show(table)
    screen.say(f"wrote {output}")


if __name__ == "__main__":
    main()
