"""Every solver's plan, and stock DDP, on emulated hosts: predicted against measured.

The whole loop through the real commands: ``benchmark-network`` on the hosts, ``solve``
for each solver, then the replayed ResNet-50 under each plan and under DDP, in turns
within one run. Needs root on Linux. Writes a table (Markdown) and the figures (JSON) to
``benchmarks/results``.

    python -m comm_plan.benchmarks.solvers_on_hosts --rate 1gbit
"""

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from comm_plan import units
from comm_plan.benchmarks import profiles
from comm_plan.benchmarks.hosts import EmulatedHosts, HostResult, supported
from comm_plan.plans import Network, Plan, Profile

SOLVERS = ("wfbp", "single", "threshold", "mg-wfbp", "optimal")
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Line:
    """One row of the table; ``predicted_s`` is None for what has no plan."""

    name: str
    buckets: int | None
    predicted_s: float | None
    measured_s: float
    p95_s: float
    iterations: int

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1."""
        if self.predicted_s is None:
            return None
        return self.predicted_s / self.measured_s - 1


def comm_plan(*arguments: object) -> list[str]:
    """Return the command line of a verb."""
    return [sys.executable, "-m", "comm_plan.cli", *map(str, arguments)]


def run_all(hosts: EmulatedHosts, argv: list[str], timeout_s: float = 600) -> None:
    """Run ``argv`` on all hosts.

    Raises:
        RuntimeError: it failed on one.
    """
    results: list[HostResult] = hosts.run(argv, timeout_s=timeout_s)
    for rank, result in enumerate(results):
        if result.returncode:
            raise RuntimeError(f"rank {rank}: {result.stderr[-2000:]}")


def solve(folder: Path, solvers: tuple[str, ...]) -> dict[str, Path]:
    """Return the plan file of each solver, made from the folder's documents."""
    import subprocess

    plans = {}
    for solver in solvers:
        plans[solver] = folder / f"{solver}.json"
        inputs = (folder / "profile.json", folder / "network.json")
        argv = comm_plan("solve", *inputs, "-o", plans[solver], "--solver", solver)
        subprocess.run(argv, check=True, capture_output=True)
    return plans


def measure(
    hosts: EmulatedHosts, folder: Path, plans: dict[str, Path], extra: list[str]
) -> dict[str, list[float]]:
    """Return the seconds of every iteration of every variant."""
    named = [word for n, path in plans.items() for word in ("--plan", f"{n}={path}")]
    output = folder / "times.json"
    argv = [sys.executable, "-m", "comm_plan.benchmarks.replay_rounds"]
    run_all(hosts, [*argv, str(folder / "profile.json"), str(output), *named, *extra])
    return json.loads(output.read_text())


def lines(times: dict[str, list[float]], plans: dict[str, Path]) -> list[Line]:
    """Return the rows, fastest first."""
    rows = []
    for name, seconds in times.items():
        plan = Plan.load(plans[name]) if name in plans else None
        rows.append(
            Line(
                name=name,
                buckets=plan and len(plan.buckets),
                predicted_s=plan and plan.predicted.iteration_s,
                measured_s=statistics.median(seconds),
                p95_s=statistics.quantiles(seconds, n=20)[-1],
                iterations=len(seconds),
            )
        )
    return sorted(rows, key=lambda row: row.measured_s)


def markdown(title: str, rows: list[Line], notes: list[str]) -> str:
    """Return the table as Markdown."""
    ddp_s = next(row.measured_s for row in rows if row.name == "ddp")
    head = "| variant | buckets | predicted | measured (median) | p95 | error | DDP / it |"
    text = [f"# {title}", "", head, "|---|---:|---:|---:|---:|---:|---:|"]
    for row in rows:
        text.append(
            f"| {row.name} | {row.buckets or '-'} "
            f"| {units.seconds(row.predicted_s) if row.predicted_s else '-'} "
            f"| {units.seconds(row.measured_s)} | {units.seconds(row.p95_s)} "
            f"| {'-' if row.error is None else f'{row.error:+.1%}'} "
            f"| {ddp_s / row.measured_s:.2f} |"
        )
    return "\n".join([*text, "", *notes, ""])


def notes(profile: Profile, network: Network, plan: Plan, rows: list[Line]) -> list[str]:
    """Return what a reader must know of the table."""
    fit = network.collectives["allreduce"].fit
    largest = network.collectives["allreduce"].samples[-1]
    return [
        f"- Model: {profile.model.name}, {units.nbytes(profile.nbytes)} of gradients in "
        f"{len(profile.tensors)} tensors; forward {units.seconds(profile.forward_s)}, "
        f"backward {units.seconds(profile.backward_s)}, update "
        f"{units.seconds(profile.update_s)}, chosen, not measured "
        "(`benchmarks/profiles.py`); computation is slept, communication is real.",
        f"- Network: {network.world_size} emulated hosts, gloo; all-reduce of "
        f"{units.nbytes(largest.nbytes)} in {units.seconds(largest.median_s)}; fit error "
        f"{fit.median_error:.1%} (median).",
        f"- Dense lower bound {units.seconds(plan.predicted.lower_bound_s)}.",
        f"- {rows[0].iterations} timed iterations a variant, in turns within one run; "
        "an iteration's time is that of the slowest rank.",
        "- `alone` communicates nothing; its excess over the profile's sum is what "
        "replaying costs.",
    ]


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--budget", type=float, default=90)
    arguments = parser.parse_args()
    reason = supported()
    if reason is not None:
        sys.exit(f"no emulated hosts here: {reason}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        profile = profiles.resnet50()
        profile.save(folder / "profile.json")
        with EmulatedHosts(arguments.hosts, arguments.rate) as hosts:
            network_path = folder / "network.json"
            argv = comm_plan("benchmark-network", "-o", network_path,
                             "--budget", arguments.budget)  # fmt: skip
            run_all(hosts, argv)
            plans = solve(folder, SOLVERS)
            extra = ["--ddp", "--alone", "--rounds", str(arguments.rounds)]
            extra += ["--iterations", str(arguments.iterations)]
            times = measure(hosts, folder, plans, extra)
        network = Network.load(network_path)
        rows = lines(times, plans)
        said = notes(profile, network, Plan.load(plans["optimal"]), rows)
    title = f"ResNet-50, {arguments.hosts} hosts at {arguments.rate}"
    text = markdown(title, rows, said)
    name = f"solvers-{arguments.hosts}x{arguments.rate}"
    (RESULTS / f"{name}.md").write_text(text)
    figures = {"rows": [asdict(row) for row in rows], "times_s": times}
    (RESULTS / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
    network.save(RESULTS / f"network-{arguments.hosts}x{arguments.rate}.json")
    print(text)


if __name__ == "__main__":
    main()
