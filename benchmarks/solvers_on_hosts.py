"""Every solver's plan, and stock DDP, on emulated hosts: predicted against measured.

The whole loop through the real commands: ``benchmark-network`` on the hosts, ``solve``
for each solver, then the replayed ResNet-50 under each plan and under DDP, in turns
within one run. Needs root on Linux. Writes a table (Markdown) and the figures (JSON) to
``benchmarks/results``.

    python -m comm_plan.benchmarks.solvers_on_hosts --rate 1gbit
"""

import tempfile
from dataclasses import asdict
from pathlib import Path

from comm_plan import units
from comm_plan.benchmarks import profiles, tables
from comm_plan.benchmarks.commands import (
    comm_plan,
    hosts_parser,
    replay,
    require_hosts,
    run_all,
    solve,
)
from comm_plan.benchmarks.hosts import EmulatedHosts
from comm_plan.plans import Network, Plan, Profile

SOLVERS = ("wfbp", "single", "threshold", "mg-wfbp", "optimal")


def notes(
    profile: Profile, network: Network, plan: Plan, rows: list[tables.Line]
) -> list[str]:
    """Return what a reader must know of the table."""
    fit = network.collectives["allreduce"].fit
    largest = network.collectives["allreduce"].samples[-1]
    assert fit is not None  # it was measured
    assert plan.predicted is not None  # a solver made it
    return [
        f"- Model: {profile.model.name}, {units.nbytes(profile.nbytes)} of gradients "
        f"in {len(profile.tensors)} tensors; forward "
        f"{units.seconds(profile.forward_s)}, "
        f"backward {units.seconds(profile.backward_s)}, update "
        f"{units.seconds(profile.update_s)}, chosen, not measured "
        "(`benchmarks/profiles.py`); computation is slept, communication is real.",
        f"- Network: {network.world_size} emulated hosts, gloo; all-reduce of "
        f"{units.nbytes(largest.nbytes)} in {units.seconds(largest.median_s)}; fit "
        f"error {fit.median_error:.1%} (median).",
        f"- Dense lower bound {units.seconds(plan.predicted.lower_bound_s)}.",
        f"- Predictions: {tables.error_sentence(rows)}.",
        f"- {rows[0].iterations} timed iterations a variant, in turns within one run; "
        "an iteration's time is the mean of the ranks.",
        "- `alone` communicates nothing; its excess over the profile's sum is what "
        "replaying costs.",
    ]


def main() -> None:
    """Measure and write the results."""
    arguments = hosts_parser(__doc__, rounds=5, budget_s=90).parse_args()
    require_hosts()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        profile = profiles.resnet50()
        profile.save(folder / "profile.json")
        with EmulatedHosts(arguments.hosts, arguments.rate) as hosts:
            network_path = folder / "network.json"
            argv = comm_plan("benchmark-network", "-o", network_path,
                             "--budget", arguments.budget)  # fmt: skip
            run_all(hosts, argv)
            plans = {name: solve(folder, name, "--solver", name) for name in SOLVERS}
            extra = ["--ddp", "--alone", "--rounds", arguments.rounds]
            times = replay(
                hosts, folder, plans, *extra, "--iterations", arguments.iterations
            )
        network = Network.load(network_path)
        rows = tables.lines(times, plans, profile)
        said = notes(profile, network, Plan.load(plans["optimal"]), rows)
    title = f"# ResNet-50, {arguments.hosts} hosts at {arguments.rate}"
    ddp_s = next(row.measured_s for row in rows if row.name == "ddp")
    text = tables.save(
        f"solvers-{arguments.hosts}x{arguments.rate}",
        [title, tables.comparison(rows, ddp_s), "\n".join(said)],
        {"rows": [asdict(row) for row in rows], "times_s": times},
    )
    network.save(tables.RESULTS / f"network-{arguments.hosts}x{arguments.rate}.json")
    print(text)


if __name__ == "__main__":
    main()
