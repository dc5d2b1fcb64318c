"""The command line: each verb parses, calls one function of a room, and prints.

Results go to files, progress and tables to stderr; ``--json`` prints the result to
stdout. Heavy imports wait inside the verbs, so that ``--help`` is instant.

Under torchrun, mpirun or srun every rank runs the same command and finds its rank in
the environment; ``--local-ranks N`` starts N ranks on this host.

Exit codes: 0 done, 1 a run failed, 2 bad input; one line says why, on the rank that
knows (``--debug`` shows the traceback).
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from comm_plan import __version__, screen
from comm_plan.errors import CommPlanError, InputError
from comm_plan.transports.ranks import RANK_0_FIRST_S, place

if TYPE_CHECKING:
    from comm_plan.plans import Document, Network
    from comm_plan.runtime.engine import Engine
    from comm_plan.runtime.trainer import Event
    from comm_plan.transports.base import Transport

Number = TypeVar("Number", int, float)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Plan and tune the communication of distributed deep learning.",
)

WorkloadArgument = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="A built-in name, package.module:function, path/file.py:function, or "
        "replay:profile.json.",
    ),
]
ProfileArgument = Annotated[Path, typer.Argument(metavar="PROFILE")]
NetworkArgument = Annotated[Path, typer.Argument(metavar="NETWORK")]
LocalRanks = Annotated[
    int | None,
    typer.Option("--local-ranks", min=1, help="Start so many ranks on this host."),
]
BackendOption = Annotated[
    str | None,
    typer.Option("--backend", help="gloo, nccl or mpi. [default: nccl with CUDA]"),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="cpu or cuda. [default: cuda if there]")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result to stdout.")]
WorldSize = Annotated[
    int | None,
    typer.Option(min=1, help="Ranks to plan for. [default: as measured]"),
]
LinkSpeed = Annotated[
    float | None,
    typer.Option(
        "--link-gbits", min=1e-6, help="A rank's link, for the lower bound, Gbit/s."
    ),
]
DenseLayers = Annotated[
    str | None,
    typer.Option(help="Never compress these: comma-separated patterns of names."),
]
MaxRatio = Annotated[
    float, typer.Option(min=1, help="Upper bound on numel / k for sparse methods.")
]


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks of errors.")
    ] = False,
    version: Annotated[bool, typer.Option("--version", help="Print and exit.")] = False,
) -> None:
    if debug:
        os.environ["COMM_PLAN_DEBUG"] = "1"
    if version:
        print(f"comm-plan {__version__}")
        raise typer.Exit


@app.command()
def profile(
    workload: WorkloadArgument,
    output: Annotated[Path, typer.Option("-o", "--output")] = Path("profile.json"),
    device: DeviceOption = None,
    batch_size: Annotated[int | None, typer.Option(min=1)] = None,
    iterations: Annotated[int, typer.Option(min=1, help="Timed; at least 20.")] = 30,
    compressors: Annotated[
        str, typer.Option(help="Cost them on the device: all, none, or names.")
    ] = "all",
    backend: BackendOption = None,
    local_ranks: LocalRanks = None,
    json: Json = False,
) -> None:
    """Measure when each gradient is ready, and what compressors cost."""
    _start_ranks(local_ranks, backend)
    from comm_plan.plans import check_writable
    from comm_plan.profiler import compression_costs, measure
    from comm_plan.workloads import load

    check_writable(output)
    options = {} if batch_size is None else {"batch_size": batch_size}
    model = load(workload, **options)
    kinds = _kinds(compressors)
    with _connect(backend, device) as transport, screen.progress() as progress:
        where = str(transport.device)
        found = measure(
            model,
            device=where,
            iterations=iterations,
            transport=transport,
            progress=lambda done, total: progress(done, total, "iterations"),
        )
        if transport.rank == 0:
            costs = compression_costs(
                found.model.parameters,
                kinds=kinds,
                device=where,
                progress=lambda done, total: progress(done, total, "compressors"),
            )
            found = found.model_copy(update={"compression": costs})
    _finish(found, output, json)


@app.command()
def benchmark_network(
    output: Annotated[Path, typer.Option("-o", "--output")] = Path("network.json"),
    backend: BackendOption = None,
    collectives: Annotated[
        str | None, typer.Option(help="Comma-separated. [default: all]")
    ] = None,
    max_nbytes: Annotated[
        int, typer.Option("--max-bytes", min=4, help="Largest message.")
    ] = 64 * 1024 * 1024,
    budget_s: Annotated[
        float, typer.Option("--budget", min=0, help="About so many seconds in all.")
    ] = 90.0,
    device: DeviceOption = None,
    local_ranks: LocalRanks = None,
    imported: Annotated[
        list[Path] | None,
        typer.Option("--import", help="Read nccl-tests or OSU output instead."),
    ] = None,
    world_size: Annotated[
        int | None, typer.Option(min=2, help="Ranks of the imported files.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure what collectives cost on this cluster, and fit it."""
    from comm_plan.plans import check_writable

    if imported:
        from comm_plan.commbench.importing import load

        found = load(imported, world_size=world_size, backend=backend)
    else:
        _start_ranks(local_ranks, backend)
        check_writable(output)
        found = _sweep(backend, device, collectives, max_nbytes, budget_s)
    _finish(found, output, json)


@app.command()
def solve(
    profile: ProfileArgument,
    network: NetworkArgument,
    output: Annotated[Path, typer.Option("-o", "--output")] = Path("plan.json"),
    solver: Annotated[
        str,
        typer.Option(
            help="optimal, mg-wfbp, threshold, wfbp or single (all exactly dense), "
            "lags, slgs or auto (they choose compression)."
        ),
    ] = "optimal",
    world_size: WorldSize = None,
    compressor: Annotated[
        str | None, typer.Option(help="Force one for all buckets: topk, terngrad, ...")
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Of the forced compressor: density=..."
        ),
    ] = None,
    dense_layers: DenseLayers = None,
    allow: Annotated[
        str | None, typer.Option(help="What auto may use, comma-separated.")
    ] = None,
    lossless: Annotated[
        bool, typer.Option("--lossless", help="auto may use dense only.")
    ] = False,
    max_ratio: MaxRatio = 1000.0,
    threshold: Annotated[
        str, typer.Option(help="Cap of threshold: ddp, horovod, or bytes.")
    ] = "ddp",
    link_gbits: LinkSpeed = None,
    json: Json = False,
) -> None:
    """Compute the plan, and say what it brings."""
    from comm_plan import planner
    from comm_plan.planner.problem import Settings
    from comm_plan.planner.summary import summarise
    from comm_plan.planner.threshold import caps
    from comm_plan.plans import Network, Profile, check_writable

    check_writable(output)
    documents = Profile.load(profile), Network.load(network)
    settings = Settings(
        caps_nbytes=caps(int(threshold) if threshold.isdigit() else threshold),
        max_ratio=max_ratio,
        allow=("dense",) if lossless else _names(allow),
    )
    link = None if link_gbits is None else link_gbits * 1e9 / 8
    patterns = _names(dense_layers)
    plan = planner.solve(
        *documents,
        solver,
        world_size=world_size,
        link_bytes_per_s=link,
        compressor=compressor,
        options=_pairs(options),
        dense_layers=patterns,
        settings=settings,
    )
    summary = summarise(
        *documents,
        world_size=world_size,
        link_bytes_per_s=link,
        dense_layers=patterns,
        settings=settings,
    )
    plan.save(output)
    if json:
        print(plan.to_json(), end="")
    screen.show(screen.solver_table(summary, plan, compressor))
    screen.say(summary.verdict)
    screen.say(f"wrote {output}")


@app.command()
def train(
    workload: WorkloadArgument,
    plan: Annotated[Path, typer.Option("--plan", help="What solve wrote.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The run record.")
    ] = Path("run.json"),
    epochs: Annotated[int | None, typer.Option(min=1)] = None,
    steps: Annotated[
        int | None, typer.Option(min=0, help="Stop after so many.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1)] = None,
    seed: int = 0,
    backend: BackendOption = None,
    device: DeviceOption = None,
    local_ranks: LocalRanks = None,
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
        str, typer.Option(help="A gradient with inf or NaN: stop or skip.")
    ] = "stop",
    find_unused_parameters: Annotated[
        bool,
        typer.Option(
            "--find-unused-parameters", help="Parameters may get no gradient."
        ),
    ] = False,
    density_warmup: Annotated[
        str | None,
        typer.Option(help="Densities of the first epochs; 'paper' is 0.25,0.0725,..."),
    ] = None,
    diagnostics: Annotated[
        Path | None,
        typer.Option(
            help="Residual norms and delta: FILE.jsonl, or TensorBoard folder."
        ),
    ] = None,
    diagnostics_every: Annotated[int, typer.Option(min=1, help="Steps.")] = 10,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds a collective may take.")
    ] = 300.0,
    json: Json = False,
) -> None:
    """Train by the plan; compare the measured times with the predicted ones."""
    _start_ranks(local_ranks, backend or _planned_backend(plan))
    from comm_plan.plans import Plan, check_writable
    from comm_plan.runtime.agreement import check_plan
    from comm_plan.runtime.trainer import Options
    from comm_plan.runtime.trainer import train as run
    from comm_plan.workloads import load

    if resume and checkpoint is None:
        raise InputError("--resume needs --checkpoint FOLDER to resume from")
    if on_nonfinite not in ("stop", "skip"):
        raise InputError(f"--on-nonfinite {on_nonfinite}: use stop or skip")
    check_writable(output)
    chosen = Plan.load(plan)
    sizes = {} if batch_size is None else {"batch_size": batch_size}
    model = load(workload, seed=seed, **sizes)
    check_plan(chosen, model.model, place().world_size)
    total = steps if epochs is None else None
    with (
        _connect(backend or chosen.backend, device, timeout_s) as transport,
        screen.training_progress(total) as show,
    ):
        watchers = [show]
        if diagnostics is not None:
            from comm_plan.runtime.diagnostics import writer

            watchers.append(writer(diagnostics, diagnostics_every))

        def watch(event: Event, engine: Engine) -> None:
            for watcher in watchers:
                watcher(event, engine)

        record = run(
            model,
            chosen,
            transport,
            Options(
                epochs=epochs,
                steps=steps,
                seed=seed,
                checkpoint=checkpoint,
                checkpoint_every=checkpoint_every,
                resume=resume,
                on_nonfinite="skip" if on_nonfinite == "skip" else "stop",
                find_unused_parameters=find_unused_parameters,
                density_warmup=_warmup(density_warmup),
                watcher=watch,
            ),
        )
    _finish(record, output, json)


@app.command()
def simulate(
    profile: ProfileArgument,
    network: NetworkArgument,
    world_sizes: Annotated[
        str, typer.Option("--world-sizes", help="Comma-separated numbers of ranks.")
    ] = "2,4,8,16,32,64",
    link_gbits: LinkSpeed = None,
    dense_layers: DenseLayers = None,
    max_ratio: MaxRatio = 1000.0,
) -> None:
    """Ask what if: every solver's iteration time on other numbers of ranks."""
    from comm_plan.planner.problem import Settings
    from comm_plan.planner.summary import summarise
    from comm_plan.plans import Network, Profile

    documents = Profile.load(profile), Network.load(network)
    sizes = _numbers("--world-sizes", world_sizes, int)
    summaries = [
        summarise(
            *documents,
            world_size=size,
            link_bytes_per_s=None if link_gbits is None else link_gbits * 1e9 / 8,
            dense_layers=_names(dense_layers),
            settings=Settings(max_ratio=max_ratio),
        )
        for size in sizes
    ]
    screen.show(screen.what_if_table(summaries, documents[1].world_size))


@app.command()
def report(
    profile: ProfileArgument,
    network: NetworkArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="timeline.png, .html, or .json (Perfetto). [default: the terminal]",
        ),
    ] = None,
    solvers: Annotated[
        str, typer.Option(help="Comma-separated.")
    ] = "wfbp,threshold,optimal",
    world_size: WorldSize = None,
) -> None:
    """Draw the timeline of one iteration under each solver."""
    from comm_plan.planner import find_solver
    from comm_plan.planner.documents import make_problem
    from comm_plan.plans import Network, Profile
    from comm_plan.report.save import save

    measured, cluster = Profile.load(profile), Network.load(network)
    problem = make_problem(measured, cluster, world_size)
    drawn = [
        screen.picture(name, measured, problem, find_solver(name)(problem))
        for name in _names(solvers) or ()
    ]
    if output is None:
        from comm_plan.report.terminal import TerminalTimelines

        screen.show(TerminalTimelines(drawn))
        return
    ranks = f"{problem.world_size} ranks, {cluster.backend}"
    save(drawn, output, f"{measured.model.name}, {ranks}")
    screen.say(f"wrote {output}")


@app.command()
def show(document: Annotated[Path, typer.Argument(metavar="FILE")]) -> None:
    """Say what a profile, network, plan or run record holds."""
    from comm_plan.plans import load_document

    for table in screen.tables(load_document(document), every_collective=True):
        screen.show(table)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("-o", "--output")] = Path("demo-output"),
    ranks: Annotated[int, typer.Option("--local-ranks", min=2)] = 4,
) -> None:
    """Run the whole loop on this machine: profile, network, plan, training."""
    from comm_plan.demo import run

    code = run(folder, ranks)
    if code:
        raise typer.Exit(code)


# Around the verbs


def main() -> NoReturn:
    """Run the command line and exit."""
    # Torch warns about host names that cannot be resolved, on every rank.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except CommPlanError as error:
        _fail(error, error.exit_code)
    except Exception as error:
        _fail(error, 1)
    sys.exit(0)


def _fail(error: BaseException, code: int) -> NoReturn:
    """Say what is wrong, if all ranks found it only once, and leave."""
    here = place()
    if here.rank == 0 or not isinstance(error, InputError):
        _explain(error)
    elif here.launcher in ("mpirun", "mpiexec"):
        time.sleep(RANK_0_FIRST_S)
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread may still sit in a collective that will never end.
    os._exit(code)


def _explain(error: BaseException) -> None:
    """Print ``error`` in one line."""
    here = place()
    if os.environ.get("COMM_PLAN_DEBUG"):
        traceback.print_exception(error)
    text = " ".join(str(error).split())
    if not isinstance(error, CommPlanError):
        text = f"{type(error).__name__}: {text} (--debug shows where)"
    who = f"rank {here.rank}: " if here.world_size > 1 else ""
    print(f"comm-plan: error: {who}{text}", file=sys.stderr, flush=True)


def _start_ranks(local_ranks: int | None, backend: str | None) -> None:
    """Run this same command on ``local_ranks`` ranks instead, and exit."""
    if local_ranks is None or local_ranks == 1:
        return
    if place().launcher != "none":
        raise InputError(
            f"--local-ranks under {place().launcher}: leave one of the two out"
        )
    from comm_plan.transports.launch import run_local

    command = [sys.executable, "-m", "comm_plan.cli", *_without_local_ranks()]
    code = run_local(command, local_ranks, backend or "gloo")
    raise typer.Exit(code)


def _without_local_ranks() -> list[str]:
    arguments: list[str] = []
    given = iter(sys.argv[1:])
    for argument in given:
        if argument == "--local-ranks":
            next(given)
        elif not argument.startswith("--local-ranks="):
            arguments.append(argument)
    return arguments


@contextmanager
def _connect(
    backend: str | None, device: str | None, timeout_s: float = 300.0
) -> Iterator[Transport]:
    """Join the run that the launcher's environment describes."""
    from comm_plan.transports.connect import connect

    chosen: Any = backend or "auto"
    if chosen not in ("auto", "gloo", "nccl", "mpi"):
        raise InputError(f"backend {backend!r} is unknown: use gloo, nccl or mpi")
    with connect(
        chosen, device=device, timeout_s=timeout_s, report=_explain
    ) as transport:
        yield transport


def _sweep(
    backend: str | None,
    device: str | None,
    collectives: str | None,
    max_nbytes: int,
    budget_s: float,
) -> Network:
    from comm_plan.commbench.operations import OPERATIONS
    from comm_plan.commbench.sweep import geometric_sizes, measure

    with _connect(backend, device) as transport, screen.progress() as progress:
        return measure(
            transport,
            collectives=_names(collectives) or tuple(OPERATIONS),
            sizes=geometric_sizes(largest=max_nbytes),
            budget_s=budget_s,
            progress=progress,
        )


def _planned_backend(plan: Path) -> str:
    from comm_plan.plans import Plan

    return Plan.load(plan).backend


def _finish(document: Document, output: Path, json: bool) -> None:
    """Write and show a result, on rank 0."""
    if place().rank > 0:
        return
    document.save(output)
    if json:
        print(document.to_json(), end="")
    for table in screen.tables(document, every_collective=False):
        screen.show(table)
    screen.say(f"wrote {output}")


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _pairs(texts: Sequence[str] | None) -> dict[str, str]:
    """Return ``NAME=VALUE`` texts as a mapping."""
    pairs = [text.partition("=") for text in texts or ()]
    for name, separator, value in pairs:
        if not (name and separator and value):
            raise InputError(f"--set {name}{separator}{value}: write NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _kinds(text: str) -> tuple[str, ...]:
    """Return which compressors ``--compressors`` means."""
    from comm_plan.compressors import COMPRESSORS

    if text == "all":
        return tuple(COMPRESSORS)
    return () if text == "none" else _names(text) or ()


def _numbers(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text!r}: give numbers, comma-separated") from None


def _warmup(text: str | None) -> tuple[float, ...]:
    from comm_plan.runtime.trainer import GTOPK_WARMUP

    if text is None:
        return ()
    if text == "paper":
        return GTOPK_WARMUP
    densities = _numbers("--density-warmup", text, float)
    if not all(0 < density <= 1 for density in densities):
        raise InputError(f"--density-warmup {text!r}: densities are above 0, at most 1")
    return tuple(densities)


if __name__ == "__main__":
    main()
