"""Compressed training beside dense: held-out accuracy, every method, several seeds.

Profiles and solves with the real commands, one plan a method, then trains each plan
from the same initial parameters on the same batches for the same number of steps::

    python -m comm_plan.benchmarks.accuracy tune digits       # tau of Strom and hybrid
    python -m comm_plan.benchmarks.accuracy measure digits
    python -m comm_plan.benchmarks.accuracy measure char-lm
    python -m comm_plan.benchmarks.accuracy table

The ranks are processes of this host, on gloo with one thread each. They start once for
each seed and train the plans one after the other, each with a fresh workload, by the
function that ``comm-plan train`` calls. Every finished run is added to
``results/accuracy-WORKLOAD.json`` at once, and runs found there are not run again.
``table`` writes ``results/accuracy.md``.

Plans are for the 10 Mbit/s network below, whatever joins the ranks here; it decides
the densities of LAGS and nothing else. Which tensors travel together changes no other
method's result, for each works tensor by tensor: they have one bucket, for speed here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from comm_plan.plans import CollectiveCost, Fit, Network, Plan, RunRecord, Segment
from comm_plan.runtime.trainer import GTOPK_WARMUP, Options, train
from comm_plan.transports.connect import connect
from comm_plan.transports.launch import run_local
from comm_plan.workloads import load
from comm_plan.workloads.base import Workload

RANKS = 4
STEPS = {"digits": 220, "char-lm": 120}
BATCH_SIZE = {"digits": 32, "char-lm": 4}  # a rank's
SEEDS = (0, 1, 2)
TUNING_SEED = 100  # none of SEEDS
TAUS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
TUNED = {
    ("strom", "digits"): 0.1,
    ("hybrid", "digits"): 0.1,
    ("strom", "char-lm"): 0.003,
    ("hybrid", "char-lm"): 0.003,
}
RESULTS = Path(__file__).parent / "results"

NETWORK = Network(
    backend="gloo",
    world_size=RANKS,
    collectives={
        "point_to_point": CollectiveCost(
            fit=Fit(
                segments=(
                    Segment(from_nbytes=0, alpha_s=50e-6, beta_s_per_byte=1 / 1.17e6),
                )
            )
        )
    },
)
"""10 Mbit/s at 94 % of the line; the planner builds the collectives from it."""


@dataclass(frozen=True)
class Variant:
    """A method and how it is trained.

    Attributes:
        solve: options of ``comm-plan solve``.
        warmup: ``--density-warmup`` of ``comm-plan train``.
        workload: instead of the built-in one, in ``comm-plan train`` too.
    """

    solve: tuple[str, ...]
    warmup: tuple[float, ...] = ()
    workload: str | None = None


def forced(compressor: str, **options: float) -> tuple[str, ...]:
    """Return the options of ``solve`` for one compressor everywhere."""
    pairs = [word for k, v in options.items() for word in ("--set", f"{k}={v}")]
    return ("--solver", "single", "--compressor", compressor, *pairs)


CORRECTED = ("--momentum-correction",)


def digits_without_momentum() -> Workload:
    """Return ``digits`` with the same steps in the long run, 0.05 / (1 - 0.9)."""
    return replace(load("digits"), optimizer=partial(torch.optim.SGD, lr=0.5))


def char_lm_without_momentum() -> Workload:
    """Return ``char-lm`` with Adam's first moment switched off."""
    optimizer = partial(torch.optim.AdamW, lr=3e-3, betas=(0.0, 0.999))
    workload = load("char-lm", batch_size=BATCH_SIZE["char-lm"])
    return replace(workload, optimizer=optimizer)


def variants(workload: str) -> dict[str, Variant]:
    """Return everything to train on ``workload``, by name; dense is the first."""
    plain = {
        "dense": ("--solver", "single"),
        "fp16": forced("fp16"),
        "bf16": forced("bf16"),
        "qsgd 4 bits": forced("qsgd", bits=4),
        "qsgd 3 bits": forced("qsgd", bits=3),
        "qsgd 2 bits": forced("qsgd", bits=2),
        "terngrad": forced("terngrad"),
        "terngrad-allreduce": forced("terngrad-allreduce"),
        "terngrad, no clipping": forced("terngrad", clip=0),
        "powersgd rank 2": forced("powersgd"),
        "powersgd rank 4": forced("powersgd", rank=4),
        **SPARSE,
        "vgc alpha 1": forced("vgc", alpha=1),
        "vgc alpha 1.5": forced("vgc", alpha=1.5),
        "vgc alpha 2": forced("vgc", alpha=2),
        **{
            f"{kind} tau {tau}": forced(kind, tau=tau)
            for (kind, of), tau in TUNED.items()
            if of == workload
        },
    }
    found = {name: Variant(solve) for name, solve in plain.items()}
    if workload == "digits":
        return found | warmed_and_corrected() | without_momentum(workload, 0.03)
    found = {name: variant for name, variant in found.items() if name not in ONCE}
    return found | without_momentum(workload, 0.003)


ONCE = {"qsgd 3 bits", "terngrad, no clipping", "lags, c <= 1000"}
"""Trained on ``digits`` only, to save time."""

SPARSE = {
    "topk 1 %": forced("topk"),
    "gtopk 1 %": forced("gtopk"),
    "topk 1 %, whole model": forced("model-topk"),
    "gtopk 1 %, whole model": forced("model-gtopk"),
    "lags, c <= 100": ("--solver", "lags", "--max-ratio", "100"),
    "lags, c <= 1000": ("--solver", "lags"),
}


def warmed_and_corrected() -> dict[str, Variant]:
    """Return the papers' remedies for sparse methods that fall short on ``digits``.

    Warm-up takes epochs that ``char-lm`` does not have here; momentum correction is
    made for momentum SGD, and ``char-lm`` uses Adam.
    """
    found = {}
    for kind in ("topk", "gtopk"):
        name = f"{kind} 1 %"
        found[f"{name}, warm-up"] = Variant(forced(kind), GTOPK_WARMUP)
        solve = (*forced(kind), *CORRECTED)
        name = f"{name}, momentum correction"
        found[name] = Variant(solve)
        found[f"{name}, warm-up"] = Variant(solve, GTOPK_WARMUP)
    for kind in ("strom", "hybrid"):
        solve = (*forced(kind, tau=0.3), *CORRECTED)
        found[f"{kind} tau 0.3, momentum correction"] = Variant(solve)
    found["gtopk 4 %"] = Variant(forced("gtopk", density=0.04))
    return found


def without_momentum(workload: str, tau: float) -> dict[str, Variant]:
    """Return dense and what falls short, with an optimizer without momentum."""
    make = {
        "digits": digits_without_momentum,
        "char-lm": char_lm_without_momentum,
    }[workload]
    methods = {
        "dense": ("--solver", "single"),
        "topk 1 %": forced("topk"),
        "gtopk 1 %": forced("gtopk"),
        f"strom tau {tau}": forced("strom", tau=tau),
        f"hybrid tau {tau}": forced("hybrid", tau=tau),
    }
    return {
        f"{name}, no momentum": Variant(solve, (), f"{__spec__.name}:{make.__name__}")
        for name, solve in methods.items()
    }


def tuning_variants() -> dict[str, Variant]:
    """Return Strom and hybrid at every tau tried."""
    return {
        f"{kind} tau {tau}": Variant(forced(kind, tau=tau))
        for kind in ("strom", "hybrid")
        for tau in TAUS
    }


@dataclass(frozen=True)
class Run:
    """One finished training run.

    ``compressed_ratio`` leaves out the buckets that the plan keeps dense.
    """

    variant: str
    seed: int
    metric: str
    value: float
    steps: int
    dense_nbytes: float
    message_nbytes: float
    compressed_ratio: float
    history: list[float]

    @property
    def ratio(self) -> float:
        """Dense bytes over message bytes of a mean step."""
        return self.dense_nbytes / self.message_nbytes


def summarised(variant: str, record: RunRecord) -> Run:
    """Return what the table needs of a run record."""
    assert record.traffic is not None
    last = record.evaluations[-1]
    sent = [b for b in record.traffic.buckets if b.kind != "dense"]
    sent = sent or list(record.traffic.buckets)
    return Run(
        variant=variant,
        seed=record.seed,
        metric=last.metric,
        value=last.value,
        steps=record.steps,
        dense_nbytes=record.traffic.dense_nbytes,
        message_nbytes=record.traffic.message_nbytes,
        compressed_ratio=sum(b.dense_nbytes for b in sent)
        / sum(b.message_nbytes for b in sent),
        history=[evaluation.value for evaluation in record.evaluations],
    )


# Measuring


def measure(
    workload: str, chosen: dict[str, Variant], seeds: Sequence[int], file: Path
) -> None:
    """Train what ``file`` does not hold yet, and add it there."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        solve_all(workload, chosen, folder)
        keep_plans(chosen, folder, file)
        for seed in seeds:
            done = {run.variant for run in load_runs(file) if run.seed == seed}
            left = [name for name in chosen if name not in done]
            jobs = [
                {
                    "variant": name,
                    "workload": chosen[name].workload or workload,
                    "sizes": sizes(workload, chosen[name]),
                    "plan": str(plan_path(folder, list(chosen).index(name))),
                    "options": {
                        "steps": STEPS[workload],
                        "seed": seed,
                        "density_warmup": chosen[name].warmup,
                    },
                }
                for name in left
            ]
            (folder / "jobs.json").write_text(json.dumps(jobs))
            argv = [sys.executable, "-m", __spec__.name, "ranks"]
            code = run_local([*argv, str(folder / "jobs.json"), str(file)], RANKS)
            if code:
                sys.exit(code)


def solve_all(workload: str, chosen: dict[str, Variant], folder: Path) -> None:
    """Profile ``workload`` and write a plan for each variant, by the commands."""
    network, profile = folder / "network.json", folder / "profile.json"
    NETWORK.save(network)
    comm_plan("profile", workload, "-o", profile, "--iterations", "20")
    for number, variant in enumerate(chosen.values()):
        output = plan_path(folder, number)
        comm_plan("solve", profile, network, "-o", output, *variant.solve)


def sizes(workload: str, variant: Variant) -> dict[str, int]:
    """Return the batch size to ask for; this module's own workloads have theirs."""
    return {} if variant.workload else {"batch_size": BATCH_SIZE[workload]}


def plan_path(folder: Path, number: int) -> Path:
    """Return where the plan of variant ``number`` is."""
    return folder / f"plan-{number}.json"


def comm_plan(*arguments: object) -> None:
    """Run a command."""
    argv = [sys.executable, "-m", "comm_plan.cli", *map(str, arguments)]
    subprocess.run(argv, check=True, stderr=subprocess.PIPE)


def ranks(jobs: Path, file: Path) -> None:
    """Be one rank: do every job; rank 0 adds the runs to ``file``."""
    torch.set_num_threads(1)
    with connect("gloo") as transport:
        for job in json.loads(jobs.read_text()):
            options = Options(**job["options"])
            workload = load(job["workload"], seed=options.seed, **job["sizes"])
            record = train(workload, Plan.load(job["plan"]), transport, options)
            if transport.rank == 0:
                run = summarised(job["variant"], record)
                add_run(run, file)
                print(f"{run.variant:40} {run.seed:3} {run.value:.4f} {run.ratio:7.1f}"
                      f" {sum(record.iterations_s):5.1f} s", flush=True)  # fmt: skip


# The results file


def read(file: Path) -> dict[str, Any]:
    """Return what ``file`` holds, also if it is not there yet."""
    if file.exists():
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    return {"network": NETWORK.model_dump(mode="json"), "plans": {}, "runs": []}


def load_runs(file: Path) -> list[Run]:
    """Return the finished runs."""
    return [Run(**run) for run in read(file)["runs"]]


def add_run(run: Run, file: Path) -> None:
    """Write ``run`` behind the others."""
    found = read(file)
    found["runs"].append(asdict(run))
    file.write_text(json.dumps(found, indent=1) + "\n")


def keep_plans(chosen: dict[str, Variant], folder: Path, file: Path) -> None:
    """Write how each variant compresses what, for the record."""
    found = read(file)
    for number, name in enumerate(chosen):
        buckets = Plan.load(plan_path(folder, number)).buckets
        found["plans"][name] = [bucket.model_dump(mode="json") for bucket in buckets]
    file.write_text(json.dumps(found, indent=1) + "\n")


# The table


def table(workload: str, runs: Sequence[Run]) -> list[str]:
    """Return the lines of a Markdown table, in the order of :func:`variants`."""
    by_name = {
        name: [run for run in runs if run.variant == name]
        for name in variants(workload)
    }
    dense = mean(run.value for run in by_name["dense"])
    metric = by_name["dense"][0].metric
    lines = [
        f"| method | seeds | {metric}: mean | range | to dense | ratio | part |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, found in by_name.items():
        if not found:
            continue
        values = [run.value for run in found]
        ratio = mean(run.ratio for run in found)
        part = mean(run.compressed_ratio for run in found)
        lines.append(
            f"| {name} | {len(values)} | {shown(metric, mean(values))} "
            f"| {shown(metric, min(values))} to {shown(metric, max(values))} "
            f"| {difference(metric, mean(values) - dense)} "
            f"| {ratio:.3g} | {part:.3g} |"
        )
    return lines


def shown(metric: str, value: float) -> str:
    """Return ``value`` for people."""
    return f"{100 * value:.2f} %" if metric == "accuracy" else f"{value:.3f}"


def difference(metric: str, value: float) -> str:
    """Return a difference from dense for people."""
    return f"{100 * value:+.2f} pp" if metric == "accuracy" else f"{value:+.3f}"


def write_table() -> None:
    """Write ``accuracy.md`` from the results files."""
    text = [f"# Compressed training beside dense, {RANKS} ranks", ""]
    for workload in STEPS:
        runs = load_runs(results_file(workload))
        batch = f"batch {BATCH_SIZE[workload]} a rank"
        text += [f"## {workload}: {STEPS[workload]} steps, {batch}", ""]
        text += [*table(workload, runs), ""]
        text += tuning_table(workload)
    text += [
        "Mean and range are over the seeds. Ratio: float32 bytes of all gradients over "
        "the bytes of a rank's message, mean over the steps, warm-up included; the "
        "last column, part, leaves out what the plan keeps dense.",
        "",
    ]
    (RESULTS / "accuracy.md").write_text("\n".join(text))
    print("\n".join(text))


def tuning_table(workload: str) -> list[str]:
    """Return the taus that were tried, with seed ``TUNING_SEED``."""
    runs = load_runs(results_file(f"tuning-{workload}"))
    if not runs:
        return []
    lines = [
        f"| tuning, seed {TUNING_SEED} | {runs[0].metric} | ratio |",
        "|---|---:|---:|",
    ]
    for run in runs:
        value = shown(run.metric, run.value)
        lines.append(f"| {run.variant} | {value} | {run.ratio:.3g} |")
    return [*lines, ""]


def results_file(name: str) -> Path:
    """Return where the runs of a workload are kept."""
    return RESULTS / f"accuracy-{name}.json"


def main() -> None:
    """Do one of: tune, measure, table; ``ranks`` is for the started processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("tune", "measure"):
        sub = verbs.add_parser(verb)
        sub.add_argument("workload", choices=STEPS)
        sub.add_argument("--only", help="variants whose name contains this")
    verbs.add_parser("table")
    sub = verbs.add_parser("ranks")
    sub.add_argument("jobs", type=Path)
    sub.add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "ranks":
        ranks(arguments.jobs, arguments.file)
        return
    if arguments.verb == "table":
        write_table()
        return
    name = arguments.workload
    tuning = arguments.verb == "tune"
    chosen = tuning_variants() if tuning else variants(name)
    only = arguments.only or ""
    chosen = {key: value for key, value in chosen.items() if only in key}
    file = results_file(f"tuning-{name}" if tuning else name)
    measure(name, chosen, [TUNING_SEED] if tuning else SEEDS, file)


if __name__ == "__main__":
    main()
