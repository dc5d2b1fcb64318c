"""The engine with DDP's own buckets against stock DDP, on local ranks.

A convolutional network of about 10 million parameters that really computes, and one so
small that what the engine does on the host counts, behind no link at all: what is left
is what the engine itself costs. Both run in turns within one run, for 2 and for 4
ranks. Like DDP the engine does not look for inf and NaN. Writes a table (Markdown) and
the figures (JSON) to ``benchmarks/results``.

    python -m comm_plan.benchmarks.engine_on_ranks
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from comm_plan import units
from comm_plan.benchmarks import tables
from comm_plan.benchmarks.cnn import CNN
from comm_plan.benchmarks.commands import module
from comm_plan.benchmarks.prediction_rounds import DDP
from comm_plan.planner import Settings, make_problem, solve
from comm_plan.plans import CollectiveCost, Network, Plan, Profile
from comm_plan.profiler import measure
from comm_plan.transports.launch import cores, run_local
from comm_plan.workloads import load

PLAN = "engine"

WORKLOADS = {"CNN": (CNN, 5), "digits": ("digits", 40)}
"""What is trained, and how many iterations in each turn."""

ANY_COST = CollectiveCost.affine(1e-4, 1e-9)
"""DDP's buckets are the same whatever a message costs."""


def ddp_buckets(profile: Profile, ranks: int, backend: str = "gloo") -> Plan:
    """Return the plan of DDP's own buckets."""
    costs = {"allreduce": ANY_COST}
    network = Network(backend=backend, world_size=ranks, collectives=costs)
    return solve(make_problem(profile, network, Settings()), "threshold")


def measured(
    workload: str, profile: Profile, ranks: int, rounds: int, iterations: int
) -> list[list[float]]:
    """Return the seconds of each iteration by DDP and by the engine.

    Args:
        workload: what is trained.
        profile: of it.
        ranks: on this host.
        rounds: how often both take turns.
        iterations: of a turn.

    Raises:
        RuntimeError: a rank failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        plan, output = Path(folder) / "plan.json", Path(folder) / "seconds.json"
        ddp_buckets(profile, ranks).save(plan)
        argv = module(
            "comm_plan.benchmarks.prediction_rounds", workload, output,
            f"{PLAN}={plan}", "--rounds", rounds, "--iterations", iterations,
            "--ddp", DDP, "--on-nonfinite", "propagate",
        )  # fmt: skip
        if run_local(argv, ranks):
            raise RuntimeError(f"a rank of {ranks} failed")
        seconds = json.loads(output.read_text())["seconds"]
    return [seconds[DDP], seconds[PLAN]]


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    figures, rows = {}, []
    for name, (workload, iterations) in WORKLOADS.items():
        profile = measure(load(workload), iterations=20)
        for ranks in map(int, arguments.ranks.split(",")):
            ddp_s, engine_s = measured(
                workload, profile, ranks, arguments.rounds, iterations
            )
            figures[f"{name}, {ranks} ranks"] = {DDP: ddp_s, PLAN: engine_s}
            middle = [statistics.median(each) for each in (ddp_s, engine_s)]
            shown = [*map(units.seconds, middle), f"{middle[1] / middle[0]:.3f}"]
            rows.append([name, ranks, len(ddp_s), *shown])
    head = [
        "model", "ranks", "iterations", "PyTorch DDP", "engine, DDP's buckets",
        "engine / DDP",
    ]  # fmt: skip
    parts = [
        "# The engine against DDP, nothing to wait for",
        tables.markdown(head, rows),
        f"In turns within one run, medians, on {cores()} cores; gradients are parts of "
        "buckets in both.",
    ]
    print(tables.save("engine-on-ranks", parts, figures))


if __name__ == "__main__":
    main()
