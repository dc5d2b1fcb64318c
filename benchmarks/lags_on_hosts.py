"""Compressed plans on emulated hosts, beside dense plans and stock DDP.

The whole loop: compression costs measured on all hosts at once, ``benchmark-network``
on the same hosts, ``solve`` for every variant, then the replayed ResNet-50 under each
plan, under DDP and under DDP with its fp16 hook, in turns within one run. Needs root on
Linux. Writes a table (Markdown) and the figures (JSON) to ``benchmarks/results``, anew
after every run of variants; ``--forced`` adds a second run with one compressor for all
buckets. Each variant takes some 1.2 GB on four hosts together, for all of a run live at
once on every host; hence two runs of up to 7, which stay below 10 GB.

    python -m comm_plan.benchmarks.lags_on_hosts --rate 1gbit --forced
    python -m comm_plan.benchmarks.lags_on_hosts --rate 200mbit --rounds 3 \
        --iterations 2 --profile benchmarks/results/lags-profile-4x1gbit.json
"""

import argparse
import os
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from comm_plan import units
from comm_plan.benchmarks import profiles, tables
from comm_plan.benchmarks.commands import (
    ANY_ACCURACY,
    comm_plan,
    hosts_parser,
    module,
    replay,
    require_hosts,
    run_all,
    solve,
)
from comm_plan.benchmarks.hosts import EmulatedHosts
from comm_plan.plans import CompressionCost, Network, Plan, Profile

MAX_RATIO = 1000
COLLECTIVES = "allreduce,allgather,gtopk"

Variants = Mapping[str, tuple[str | int, ...]]
"""What ``comm-plan solve`` is told for each variant."""

CHOSEN: Variants = {
    "optimal": ("--solver", "optimal"),
    "lags": ("--solver", "lags", "--max-ratio", MAX_RATIO),
    "lags, as printed": (
        *("--solver", "lags", "--literal"),
        *("--max-ratio", MAX_RATIO),
    ),
    "slgs": ("--solver", "slgs", "--max-ratio", MAX_RATIO),
    "auto": ("--solver", "auto", "--max-ratio", MAX_RATIO, *ANY_ACCURACY),
}
_AT_RATIO = ("--set", f"density={1 / MAX_RATIO}")
FORCED: Variants = {
    "topk": ("--compressor", "topk", *_AT_RATIO),
    "gtopk": ("--compressor", "gtopk", *_AT_RATIO),
    "terngrad": ("--compressor", "terngrad"),
    "fp16": ("--compressor", "fp16"),
}

PUBLISHED = """\
Published (LAGS paper, ResNet-50, 16 V100 on 10 Gbit/s Ethernet, ratio 1000), seconds an
iteration: dense 0.570, SLGS 0.485, LAGS 0.464. So LAGS over dense is 1.23x there, and
1.05x over SLGS; Inception-v4 1.23x and 1.03x, VGG-16 1.55x and 1.04x."""


def measure_documents(
    hosts: EmulatedHosts, folder: Path, arguments: argparse.Namespace
) -> None:
    """Write the folder's profile, with compression costs, and network."""
    profile, alone = folder / "profile.json", folder / "alone.json"
    if arguments.profile is not None:
        shutil.copy(arguments.profile, profile)
        shutil.copy(_alone(arguments.profile), alone)
    else:
        bare = folder / "bare.json"
        profiles.resnet50().save(bare)
        program = "comm_plan.benchmarks.compression_on_ranks"
        run_all(hosts, module(program, bare, profile, "--alone", alone))
        kept = tables.RESULTS / f"lags-profile-{_where(arguments)}.json"
        shutil.copy(profile, kept)
        shutil.copy(alone, _alone(kept))
    argv = comm_plan(
        "benchmark-network", "-o", folder / "network.json", "--collectives",
        COLLECTIVES, "--budget", arguments.budget, "--max-bytes", arguments.max_bytes,
    )  # fmt: skip
    run_all(hosts, argv)


def _alone(profile: Path) -> Path:
    return profile.with_stem(f"{profile.stem}-alone")


def _where(arguments: argparse.Namespace) -> str:
    return f"{arguments.hosts}x{arguments.rate}"


def section(
    title: str,
    times: Mapping[str, Sequence[float]],
    plans: Mapping[str, Path],
    profile: Profile,
) -> list[str]:
    """Return the paragraphs of one run of variants."""
    rows = tables.lines(times, plans, profile)
    ddp_s = statistics.median(times["ddp"])
    dense = [row for row in rows if row.name in plans and _is_dense(plans[row.name])]
    compressed = [row for row in rows if row.name in plans and row not in dense]
    words = [f"Predictions, compressed: {tables.error_sentence(compressed)}"]
    if dense:
        words.append(f"dense: {tables.error_sentence(dense)}")
    return [f"## {title}", tables.comparison(rows, ddp_s), "; ".join(words) + "."]


def _is_dense(path: Path) -> bool:
    return Plan.load(path).is_dense


def choices(plans: Mapping[str, Path]) -> str:
    """Return in words how each plan compresses."""
    return "\n".join(f"- `{name}`: {_choice(path)}." for name, path in plans.items())


def _choice(path: Path) -> str:
    counts: dict[str, int] = {}
    for bucket in Plan.load(path).buckets:
        kind = f"{bucket.compressor.kind} by {bucket.collective}"
        counts[kind] = counts.get(kind, 0) + 1
    return ", ".join(f"{count} x {kind}" for kind, count in counts.items())


def notes(
    profile: Profile, alone: Profile, network: Network, arguments: argparse.Namespace
) -> str:
    """Return what a reader must know of the tables."""
    curves = ", ".join(
        f"{name} up to {units.nbytes(cost.samples[-1].nbytes)}"
        for name, cost in network.collectives.items()
    )
    return "\n".join(
        [
            f"- Model: {profile.model.name}, {units.nbytes(profile.nbytes)} of "
            f"gradients in {len(profile.tensors)} tensors; forward "
            f"{units.seconds(profile.forward_s)}, backward "
            f"{units.seconds(profile.backward_s)}, update "
            f"{units.seconds(profile.update_s)}, chosen, not measured "
            "(`benchmarks/profiles.py`); computation is slept, compression and "
            "communication are real.",
            f"- Network: {network.world_size} emulated hosts at {arguments.rate}, "
            f"gloo; measured on these hosts: {curves}.",
            "- Compressing and writing back the whole model, one thread a rank, all "
            f"{network.world_size} ranks at once on this machine's {os.cpu_count()} "
            f"cores (one rank alone): {compression_words(profile, alone)}. Plans are "
            "made from what all ranks at once measure, for that is this cluster; the "
            "threads that drive the network compete for the same cores and are in no "
            "prediction.",
            f"- {arguments.rounds * arguments.iterations} timed iterations a variant, "
            "in turns within one run, DDP in each run; an iteration's time is "
            "the mean of the ranks.",
            "- Message bytes are what one rank hands to the transport in a step.",
        ]
    )


def compression_words(profile: Profile, alone: Profile) -> str:
    """Return the costs of the whole model at the lowest density, by compressor."""
    words = []
    for kind, costs in profile.compression.items():
        together = _whole_model(costs)
        single = _whole_model(alone.compression[kind])
        words.append(
            f"{kind} {units.seconds(together.compress_s)} "
            f"({units.seconds(single.compress_s)}) and "
            f"{units.seconds(together.decompress_s)} "
            f"({units.seconds(single.decompress_s)})"
        )
    return "; ".join(words)


def _whole_model(costs: Sequence[CompressionCost]) -> CompressionCost:
    return max(costs, key=lambda cost: (cost.numel, -cost.density))


def main() -> None:
    """Measure and write the results."""
    parser = hosts_parser(__doc__, rounds=4, budget_s=60)
    parser.add_argument("--max-bytes", type=int, default=64 * 2**20)
    parser.add_argument("--profile", type=Path, help="one that an earlier run left")
    parser.add_argument("--forced", action="store_true")
    arguments = parser.parse_args()
    require_hosts()
    tables.RESULTS.mkdir(exist_ok=True)
    where = _where(arguments)
    launches: dict[str, tuple[Variants, list[str]]] = {
        "Chosen by the planner": (CHOSEN, ["--ddp", "--ddp-fp16", "--alone"])
    }
    if arguments.forced:
        launches["One compressor for all buckets"] = FORCED, ["--ddp"]
    paragraphs = [f"# Compressed plans, ResNet-50, {where}"]
    figures: dict[str, dict[str, Any]] = {}
    with (
        tempfile.TemporaryDirectory() as temporary,
        EmulatedHosts(arguments.hosts, arguments.rate) as hosts,
    ):
        folder = Path(temporary)
        measure_documents(hosts, folder, arguments)
        profile = Profile.load(folder / "profile.json")
        alone = Profile.load(folder / "alone.json")
        network = Network.load(folder / "network.json")
        network.save(tables.RESULTS / f"lags-network-{where}.json")
        closing = [PUBLISHED, notes(profile, alone, network, arguments)]
        for title, (variants, extra) in launches.items():
            plans = {name: solve(folder, name, *how) for name, how in variants.items()}
            turns = ["--rounds", arguments.rounds, "--iterations", arguments.iterations]
            times = replay(hosts, folder, plans, *extra, *turns)
            paragraphs += [*section(title, times, plans, profile), choices(plans)]
            rows = tables.lines(times, plans, profile)
            figures[title] = {"rows": [asdict(row) for row in rows], "times_s": times}
            text = tables.save(f"lags-{where}", [*paragraphs, *closing], figures)
    print(text)


if __name__ == "__main__":
    main()
