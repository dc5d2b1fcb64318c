"""Seconds until a training is good enough: stock DDP, its hooks, and our plans.

On emulated hosts at each rate: ``profile``, ``benchmark-network``, ``solve`` and
``tune`` with the real commands, then every variant trains until it has reached the
goal, for several seeds, within one run a rate::

    python -m comm_plan.benchmarks.time_to_accuracy --rates 100mbit 1gbit none

Stock DDP has the buckets that suit it best, and every variant the learning rate, where
a task has several: the fastest of a sweep counts. Writes a table (Markdown), the
figures (JSON) and a picture to ``benchmarks/results``. Needs root on Linux. The ranks
share the machine's cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from comm_plan.benchmarks import tables
from comm_plan.benchmarks.cnn import CNN_DIGITS
from comm_plan.benchmarks.commands import (
    ANY_ACCURACY,
    comm_plan,
    module,
    require_hosts,
    run_all,
    solve,
)
from comm_plan.benchmarks.hosts import EmulatedHosts
from comm_plan.benchmarks.pictures import bars
from comm_plan.benchmarks.predictions_on_hosts import UNLIMITED
from comm_plan.benchmarks.time_to_accuracy_rounds import Outcome, Variant
from comm_plan.demo import COLLECTIVES
from comm_plan.units import counted

CAPS_MB = (0.1, 1.0, 25.0)
"""Bucket sizes of stock DDP; 25 is its default."""

PLAIN = [Variant(f"DDP, {cap:g} MB", cap_mb=cap) for cap in CAPS_MB]
ONE_BUCKET_MB = 1000.0
HOOKS = [
    Variant("DDP, fp16 hook", hook="fp16"),
    *(
        Variant(
            f"DDP, powersgd {rank} hook", hook=f"powersgd {rank}", cap_mb=ONE_BUCKET_MB
        )
        for rank in (1, 2, 4)
    ),
]
"""The PowerSGD hook starts its later collectives from callbacks, in any order of the
buckets: with more than one, ranks over gloo receive each other's wrong ones and end."""

CORRECTED = "--momentum-correction"
OURS = {
    "optimal": ("--solver", "optimal"),
    "lags": ("--solver", "lags", CORRECTED),
    "auto": ("--solver", "auto", CORRECTED),
    "auto, any accuracy": ("--solver", "auto", *ANY_ACCURACY, CORRECTED),
    "qsgd 4 bits": ("--compressor", "qsgd", "--set", "bits=4"),
    "doublesqueeze 3 bits": ("--compressor", "doublesqueeze", "--set", "bits=3"),
    "doublesqueeze 4 bits": ("--compressor", "doublesqueeze"),
    "vgc": ("--compressor", "vgc"),
    "top-k 1 %": ("--compressor", "topk", CORRECTED),
    "powersgd 2": ("--compressor", "powersgd"),
    "powersgd 4": ("--compressor", "powersgd", "--set", "rank=4"),
    "powersgd 8": ("--compressor", "powersgd", "--set", "rank=8"),
    **{
        f"{steps} local steps, doublesqueeze 4 bits": (
            "--compressor",
            "doublesqueeze",
            "--local-steps",
            str(steps),
        )
        for steps in (4, 8)
    },
}
"""Plans; where the optimizer is no SGD, momentum is not corrected. PowerSGD sends one
factor a step, its hook both: rank 8 sends as much as the hook's rank 4. Local steps are
another algorithm."""
TUNED = {"tuned": (), "tuned, local steps": ("--local-steps", "4,8")}
"""What ``tune`` finds, by its options."""
TUNING_SEED = 100
"""Of the first training that ``tune`` judges by: none of them is timed."""

REFERENCES = tuple(variant.name for variant in PLAIN)
NAMES = (*REFERENCES, *(variant.name for variant in HOOKS), *OURS, *TUNED)


@dataclass(frozen=True)
class Task:
    """What is trained, and when it is good enough.

    Attributes:
        workload: what the commands call it.
        goal: value of its metric.
        every: steps between two evaluations.
        most_steps: of a training.
        adaptive: its optimizer has no momentum that could be corrected.
        tuning_s: budget of ``tune``.
        largest_nbytes: of the sweep.
        learning_rates: to train every variant at, over the workload's.
        variants: which of all, unless told otherwise.
    """

    workload: str
    goal: float
    every: int
    most_steps: int
    adaptive: bool = False
    tuning_s: int = 120
    largest_nbytes: int = 4 * 2**20
    learning_rates: tuple[float, ...] = (1.0,)
    variants: tuple[str, ...] = NAMES


CHAR_LM = Task(
    "char-lm", goal=1.7, every=40, most_steps=1200, adaptive=True, tuning_s=300
)
AT_RATES = (
    *REFERENCES,
    "DDP, fp16 hook",
    "DDP, powersgd 4 hook",
    "auto",
    "doublesqueeze 4 bits",
    "4 local steps, doublesqueeze 4 bits",
)
TASKS = {
    "digits": Task("digits", goal=0.98, every=11, most_steps=660),
    "char-lm": CHAR_LM,
    "char-lm-rates": replace(
        CHAR_LM,
        learning_rates=(1.0, 2.0, 4.0),
        variants=AT_RATES,
    ),
    "char-lm-2x": replace(
        CHAR_LM,
        every=20,
        learning_rates=(2.0,),
        variants=("optimal", *AT_RATES),
    ),
    "cnn-digits": Task(
        CNN_DIGITS,
        goal=0.98,
        every=20,
        most_steps=1000,
        tuning_s=600,
        largest_nbytes=32 * 2**20,
    ),
}


@dataclass(frozen=True)
class Row:
    """A variant at a learning rate, over all seeds.

    Attributes:
        name: of the variant.
        rate: its learning rate over the workload's.
        seconds: median until good enough; None: most trainings never got there.
        fastest: of the seeds.
        slowest: of the seeds.
        steps: median.
        iteration_s: mean seconds of a step.
        reached: how many trainings got there.
    """

    name: str
    rate: float
    seconds: float | None
    fastest: float
    slowest: float
    steps: float
    iteration_s: float
    reached: int

    @property
    def label(self) -> str:
        """The name, and the learning rate if that is another one."""
        return self.name if self.rate == 1 else f"{self.name} at {self.rate:g}x"


def variants(
    folder: Path,
    hosts: EmulatedHosts,
    task: Task,
    budget_s: float,
    wanted: Container[str],
) -> list[Variant]:
    """Measure, solve and tune on ``hosts``; return what is wanted of all to train."""
    profile, network = folder / "profile.json", folder / "network.json"
    sizes = ("--max-bytes", task.largest_nbytes, "--budget", budget_s)
    run_all(hosts, comm_plan("profile", task.workload, "-o", profile))
    run_all(hosts, comm_plan("benchmark-network", "-o", network,
                             "--collectives", COLLECTIVES, *sizes))  # fmt: skip
    found = [each for each in (*PLAIN, *HOOKS) if each.name in wanted]
    left_out = {CORRECTED} if task.adaptive else set()
    for name in filter(wanted.__contains__, OURS):
        words = [word for word in OURS[name] if word not in left_out]
        found.append(Variant(name, plan=str(solve(folder, name, *words))))
    for name in filter(wanted.__contains__, TUNED):
        tuning = folder / name
        run_all(hosts, comm_plan("tune", task.workload, "-o", tuning,
                                 "--objective", "loss",
                                 "--profile", profile, "--network", network,
                                 "--budget", task.tuning_s, "--seed", TUNING_SEED,
                                 *TUNED[name]))  # fmt: skip
        found.append(Variant(name, plan=str(tuning / "plan.json")))
    return [replace(each, rate=rate) for each in found for rate in task.learning_rates]


def trained(
    rate: str, arguments: argparse.Namespace, folder: Path
) -> tuple[list[Outcome], dict[str, str]]:
    """Return what came of all trainings at ``rate``, and what each tuning advised."""
    task = TASKS[arguments.task]
    limit = None if rate == UNLIMITED else rate
    with EmulatedHosts(arguments.hosts, limit) as hosts:
        chosen = variants(folder, hosts, task, arguments.budget, arguments.variants)
        listed = folder / "variants.json"
        listed.write_text(json.dumps([asdict(variant) for variant in chosen]))
        output = folder / "outcomes.json"
        program = module(
            "comm_plan.benchmarks.time_to_accuracy_rounds", task.workload,
            listed, output, "--goal", task.goal, "--every", task.every,
            "--most-steps", task.most_steps, "--seeds", arguments.seeds,
        )  # fmt: skip
        run_all(hosts, program)
    advice = {
        name: json.loads((folder / name / "tuning.json").read_text())["advice"]
        for name in TUNED
        if name in arguments.variants
    }
    return [Outcome(**fields) for fields in json.loads(output.read_text())], advice


def rows(outcomes: Sequence[Outcome]) -> list[Row]:
    """Return a row for each variant at its best learning rate, the fastest first."""
    trainings: defaultdict[tuple[str, float], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        trainings[outcome.variant, outcome.rate].append(outcome)
    found = [_row(name, rate, of) for (name, rate), of in trainings.items()]
    best: dict[str, Row] = {}
    for row in sorted(found, key=lambda row: row.seconds or float("inf")):
        best.setdefault(row.name, row)
    return list(best.values())


def _row(name: str, rate: float, outcomes: Sequence[Outcome]) -> Row:
    seconds = [o.seconds if o.reached else float("inf") for o in outcomes]
    middle = median(seconds)
    return Row(
        name=name,
        rate=rate,
        seconds=None if middle == float("inf") else middle,
        fastest=min(seconds),
        slowest=max(seconds),
        steps=median(o.steps for o in outcomes),
        iteration_s=sum(o.seconds for o in outcomes) / sum(o.steps for o in outcomes),
        reached=sum(o.reached for o in outcomes),
    )


def best_ddp(found: Sequence[Row]) -> Row:
    """Return stock DDP with the buckets that suit it best, without a hook."""
    return next(row for row in found if row.name in REFERENCES)


def table(found: Sequence[Row]) -> str:
    """Return the rows as Markdown; the last column is the best plain DDP over each."""
    reference = best_ddp(found).seconds
    lines: list[list[object]] = [
        [
            row.label,
            None if row.seconds is None else f"{row.seconds:.2f} s",
            f"{row.fastest:.2f} to {row.slowest:.2f} s",
            f"{row.steps:g}",
            f"{1e3 * row.iteration_s:.1f} ms",
            None
            if row.seconds is None or reference is None
            else f"{reference / row.seconds:.2f}",
        ]
        for row in found
    ]
    head = ["variant", "good enough after", "seeds", "steps", "a step", "speed-up"]
    return tables.markdown(head, lines)


def _of_rates(task: Task) -> str:
    """Return which learning rates there were, if not only the workload's own."""
    if task.learning_rates == (1.0,):
        return ""
    if len(task.learning_rates) == 1:
        return f" At {task.learning_rates[0]:g}x the workload's learning rate."
    rates = ", ".join(f"{rate:g}x" for rate in task.learning_rates)
    return f" Each variant at the best of {rates} the workload's learning rate."


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--budget", type=float, default=30, help="of the sweep")
    parser.add_argument("--task", choices=tuple(TASKS), default="digits")
    parser.add_argument("--rates", nargs="+", default=["100mbit", "1gbit", UNLIMITED])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--variants", nargs="+", choices=NAMES, help="default: the task's"
    )
    arguments = parser.parse_args()
    arguments.variants = arguments.variants or TASKS[arguments.task].variants
    if set(REFERENCES).isdisjoint(arguments.variants):
        parser.error(f"--variants: compare with one of {', '.join(REFERENCES)}")
    require_hosts()
    advice: dict[str, dict[str, str]] = {}
    outcomes: dict[str, list[Outcome]] = {}
    written = ""
    for rate in arguments.rates:
        with tempfile.TemporaryDirectory() as temporary:
            outcomes[rate], advice[rate] = trained(rate, arguments, Path(temporary))
        written = save(arguments, outcomes, advice)
    print(written)


def save(
    arguments: argparse.Namespace,
    outcomes: Mapping[str, Sequence[Outcome]],
    advice: Mapping[str, Mapping[str, str]],
) -> str:
    """Write table, figures and picture of the rates so far; return the table."""
    task = TASKS[arguments.task]
    found = {rate: rows(of_rate) for rate, of_rate in outcomes.items()}
    title = f"{arguments.task}, {arguments.hosts} hosts, until {task.goal:g}"
    parts = [f"# Time to accuracy: {title}"]
    for rate, of_rate in found.items():
        parts += [f"## {rate}", table(of_rate)]
        parts += [f"{name}: {said}." for name, said in advice[rate].items()]
    parts.append(
        f"Medians of {counted(arguments.seeds, 'seed')}; seconds of the iterations, "
        f"the mean of the ranks; evaluated every {task.every} steps, which is not "
        f"counted.{_of_rates(task)}"
    )
    name = f"time-to-accuracy-{arguments.task}"
    figures = {
        rate: [asdict(outcome) for outcome in of_rate]
        for rate, of_rate in outcomes.items()
    }
    written = tables.save(name, parts, {"outcomes": figures})
    picture = {
        rate: {row.label: row.seconds for row in of_rate}
        for rate, of_rate in found.items()
    }
    png = bars(picture, title, f"seconds until {task.goal:g}", highlighted="DDP")
    (tables.RESULTS / f"{name}.png").write_bytes(png)
    return written


if __name__ == "__main__":
    main()
