"""Predicted against measured for every solver and method, on emulated hosts.

The whole loop on the hosts themselves: ``profile``, ``benchmark-network``, a plan for
each solver and each method forced upon all buckets, the plans that ``tune`` chooses,
then all of them, stock DDP, and DDP with its fp16 hook on the workload, in turns within
one run.
Between them the computation is timed as the profiler does, and after them profile and
network are measured again: what has changed since is the machine's doing, no
prediction's. So it is said how far off predictions would be at the speed of the rounds,
by the later documents, and between both. ``--rate none`` leaves the links unlimited.
Needs root on Linux. Plans that are the same run as one and share its figures. Writes a
table (Markdown), the figures, profiles, networks and what the tuning tried (JSON) to
``benchmarks/results``.

    python -m comm_plan.benchmarks.predictions_on_hosts --rate 1gbit --workload cnn

The ranks share the machine's cores. A replayed model sleeps its computation; the
convolutional network really computes. What takes each of ResNet-50's 161 gradients, and
compresses 102 MB, on each of eight hosts keeps two cores busy: ``replay-small``, of 10
gradients and 4.3 MB, leaves them nearly as free as cores of their own would be.
"""

import argparse
import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from comm_plan import units
from comm_plan.benchmarks import blocks, profiles, tables
from comm_plan.benchmarks.cnn import CNN
from comm_plan.benchmarks.commands import (
    ANY_ACCURACY,
    comm_plan,
    hosts_parser,
    module,
    require_hosts,
    run_all,
    solve,
)
from comm_plan.benchmarks.hosts import EmulatedHosts
from comm_plan.benchmarks.prediction_rounds import moments
from comm_plan.demo import COLLECTIVES
from comm_plan.planner import Settings
from comm_plan.planner.correction import Correction
from comm_plan.planner.predict import predict
from comm_plan.plans import METHODS, Network, Plan, Profile, Tuning
from comm_plan.plans.compression import Words
from comm_plan.plans.tuning import TUNING_FILE

SOLVERS = ("wfbp", "single", "threshold", "mg-wfbp", "optimal", "lags", "slgs")
REPLAYS = {"replay": profiles.resnet50, "replay-small": profiles.cifarnet}
"""The profile of which model is replayed."""

LARGEST_NBYTES = 32 * 2**20
UNLIMITED = "none"
TUNED = "tuned, any accuracy"
TUNINGS: dict[str, tuple[str, ...]] = {"tuned": (), TUNED: ANY_ACCURACY}
"""What ``tune`` is told, by the name of the plan that it chooses."""

AFTER = "after"
"""Folder of what was measured again after the rounds."""

Costs = tuple[Profile, Network]


def workload(name: str, folder: Path) -> str:
    """Return what the commands call the workload ``name``."""
    if name not in REPLAYS:
        return CNN
    profile = folder / "replayed.json"
    REPLAYS[name]().save(profile)
    return f"replay:{profile}"


def asked(workload: str) -> dict[str, tuple[str, ...]]:
    """Return what ``solve`` is told for each plan: all solvers, and all methods.

    A replayed model has no samples, of which some methods want second moments, and
    random gradients, by which none should decide how much it sends.
    """
    methods = [
        name
        for name, (spec, _) in METHODS.items()
        if not spec.lossless and (workload == CNN or not isinstance(spec, Words))
    ]
    return {
        **{solver: ("--solver", solver) for solver in SOLVERS},
        "lags, as printed": ("--solver", "lags", "--literal"),
        "auto": ("--solver", "auto"),
        "auto, any accuracy": ("--solver", "auto", *ANY_ACCURACY),
        **{method: ("--compressor", method) for method in methods},
    }


def where(plans: dict[str, Plan], reached: dict[str, list[dict[str, float]]]) -> str:
    """Return a table of what was reached when, predicted and measured."""
    head = ["variant"]
    rows: list[list[object]] = []
    for name, plan in plans.items():
        if plan.predicted is None or plan.predicted.timing is None:
            continue
        cells: list[object] = [name]
        for moment, expected_s in moments(plan.predicted.timing).items():
            seen_s = statistics.median(block[moment] for block in reached[name])
            cells.append(f"{units.seconds(expected_s)}, {units.seconds(seen_s)}")
            if not rows:
                head.append(moment)
        rows.append(cells)
    return tables.markdown(head, rows)


def run(
    arguments: argparse.Namespace, folder: Path
) -> tuple[dict[str, Path], dict[str, Any]]:
    """Measure profile and network, and run all plans; the documents are in ``folder``.

    Returns:
        The plans, and what ``prediction_rounds`` wrote. Profile and network are in the
        folder, as they were before the rounds and, in ``after``, after them.
    """
    rate = None if arguments.rate == UNLIMITED else arguments.rate
    name = workload(arguments.workload, folder)
    sizes = ("--max-bytes", LARGEST_NBYTES, "--budget", arguments.budget)

    def sweep(into: Path) -> list[str]:
        return comm_plan(
            "benchmark-network", "-o", into / "network.json",
            "--collectives", f"{COLLECTIVES},spardl", *sizes,
        )  # fmt: skip

    def profiling(into: Path) -> list[str]:
        return comm_plan("profile", name, "-o", into / "profile.json")

    if arguments.network_hosts:
        with EmulatedHosts(arguments.network_hosts, rate) as hosts:
            run_all(hosts, sweep(folder))
    with EmulatedHosts(arguments.hosts, rate) as hosts:
        run_all(hosts, profiling(folder))
        if not arguments.network_hosts:
            run_all(hosts, sweep(folder))
        common: tuple[object, ...] = ("--world-size", arguments.hosts)
        if name == CNN:  # momentum SGD, which ``tune`` corrects where plans are sparse
            common = (*common, "--momentum-correction")
        plans = {
            each: solve(folder, each, *options, *common)
            for each, options in asked(name).items()
        }
        for tuned, options in () if arguments.network_hosts else TUNINGS.items():
            run_all(hosts, comm_plan("tune", name, "-o", folder / tuned,
                                     "--profile", folder / "profile.json",
                                     "--network", folder / "network.json",
                                     "--budget", arguments.tuning,
                                     *options))  # fmt: skip
            plans[tuned] = folder / tuned / "plan.json"
        output = folder / "seconds.json"
        same = same_plans({each: Plan.load(path) for each, path in plans.items()})
        pairs = [f"{each}={plans[each]}" for each in plans if same[each] == each]
        rounds = ("--rounds", arguments.rounds, "--iterations", arguments.iterations)
        program = module("comm_plan.benchmarks.prediction_rounds", name, output,
                         *pairs, *rounds)  # fmt: skip
        run_all(hosts, program)
        if not arguments.network_hosts:
            run_all(hosts, profiling(folder / AFTER))
            run_all(hosts, sweep(folder / AFTER))
    written = json.loads(output.read_text())
    for of_plans in (written["seconds"], written["moments"]):
        of_plans |= {each: of_plans[first] for each, first in same.items()}
    return plans, written


def costs_in(folder: Path) -> Costs:
    """Return the profile and the network that were written to ``folder``."""
    profile = Profile.load(folder / "profile.json")
    return profile, Network.load(folder / "network.json")


def choice(plan: Plan) -> str:
    """Return in words how ``plan`` compresses."""
    kinds = (f"{each.compressor.kind} by {each.collective}" for each in plan.buckets)
    return ", ".join(f"{count} x {kind}" for kind, count in Counter(kinds).items())


def same_plans(plans: dict[str, Plan]) -> dict[str, str]:
    """Return for each plan the name of the first that does what it does."""
    first: dict[str, str] = {}
    for name, plan in plans.items():
        alike = (
            other
            for other in first
            if plans[other].buckets == plan.buckets
            and plans[other].momentum_correction == plan.momentum_correction
        )
        first[name] = next(alike, name)
    return first


def same_sentence(plans: dict[str, Plan]) -> str:
    """Return which plans are the same."""
    same = same_plans(plans)
    pairs = [f"{name} is {first}" for name, first in same.items() if name != first]
    return f"The same plans: {'; '.join(pairs)}." if pairs else "All plans differ."


def drift_sentence(profile: Profile, rounds_s: float) -> str:
    """Return what the same computation took before the rounds, and within them."""
    before_s = profile.forward_s + profile.backward_s
    return (
        f"Forward and backward took {units.seconds(before_s)} before the rounds, "
        f"{units.seconds(rounds_s)} within them: {rounds_s / before_s - 1:+.1%}."
    )


def at_rounds_speed(
    rows: list[tables.Line],
    plans: dict[str, Plan],
    costs: Costs,
    rounds_s: float,
) -> list[tables.Line]:
    """Return the rows with what would have been predicted at the speed of the rounds.

    That of forward, backward and what compression adds to it; the update and decoding
    stay.

    Args:
        rows: of plans and others.
        plans: by name.
        costs: what the plans were made for.
        rounds_s: what forward and backward took within the rounds.
    """
    profile, network = costs
    slower = rounds_s / (profile.forward_s + profile.backward_s)
    changed = Correction(
        forward=slower,
        backward=slower,
        latency=1.0,
        per_byte=1.0,
        observed=(slower, 1.0, 1.0),
        compression=dict.fromkeys(profile.compression, slower),
    ).profile(profile)
    return told_by((changed, network), rows, plans, costs)


def told_by(
    others: Costs, rows: list[tables.Line], plans: dict[str, Plan], costs: Costs
) -> list[tables.Line]:
    """Return the rows with what would have been predicted by ``others``.

    Args:
        others: profile and network.
        rows: of plans and others.
        plans: by name.
        costs: what the plans were made for.
    """
    found = []
    for row in rows:
        plan = plans.get(row.name)
        if plan is not None and plan.predicted is not None:
            then = predict(plan, *others, Settings.of(plan)).predicted
            now = predict(plan, *costs, Settings.of(plan)).predicted
            assert then is not None
            assert now is not None
            share = then.iteration_s / now.iteration_s
            row = replace(row, predicted_s=plan.predicted.iteration_s * share)
        found.append(row)
    return found


def after_sentence(
    after: Costs | None,
    rows: list[tables.Line],
    plans: dict[str, Plan],
    costs: Costs,
) -> str:
    """Return how far off predictions are by what was measured after the rounds.

    Args:
        after: profile and network; None: not measured, and nothing is said.
        rows: of plans and others.
        plans: by name.
        costs: what the plans were made for.
    """
    if after is None:
        return ""
    later = told_by(after, rows, plans, costs)
    between = [
        row
        if row.predicted_s is None or other.predicted_s is None
        else replace(row, predicted_s=(row.predicted_s + other.predicted_s) / 2)
        for row, other in zip(rows, later, strict=True)
    ]
    return (
        f"- Measured again after the rounds, profile and network predict: "
        f"{tables.error_sentence(later)}. Between both: "
        f"{tables.error_sentence(between)}.\n"
    )


def tuned_sentence(
    rows: list[tables.Line],
    times: blocks.Times,
    iterations: int,
    tunings: Mapping[str, Tuning],
) -> str:
    """Return how the tuned plan compares with the best of all, "" without tunings.

    Args:
        rows: fastest first.
        times: of all variants.
        iterations: of a block.
        tunings: what was tried, by the names of :data:`TUNINGS`.
    """
    if not tunings:
        return ""
    best = rows[0]
    tuned_s = next(row.measured_s for row in rows if row.name == TUNED)
    low, high = blocks.ratio_between(times[TUNED], times[best.name], iterations)
    behind = blocks.behind_best(times, TUNED, iterations)
    return (
        f"- The plan {TUNED!r} takes {tuned_s / best.measured_s - 1:.1%} longer than "
        f"the fastest of all, {best.name} (95 % of resampled rounds: {low - 1:+.1%} to "
        f"{high - 1:+.1%}); than what is fastest in one half of the blocks it takes "
        f"{behind - 1:.1%} longer in the other. What `tune` chose is predicted as it "
        "does at its end, by costs that its trials have corrected.\n"
        + "".join(
            f"- {name.capitalize()}: {each.advice}.\n" for name, each in tunings.items()
        )
    )


def scatter_sentence(times: blocks.Times, iterations: int) -> str:
    """Return how much of an error may be the measurement's."""
    of_one = blocks.scatter(times, iterations)
    count = min(map(len, times.values())) // iterations
    return (
        f"Blocks of {iterations} iterations of one variant scatter by {of_one:.1%} "
        f"(standard deviation), and so {count} of them by {of_one / count**0.5:.1%}, "
        "whatever was predicted."
    )


def main() -> None:
    """Measure and write the results."""
    parser = hosts_parser(__doc__, rounds=5, iterations=4)
    parser.add_argument("--budget", type=float, default=40, help="of the sweep")
    parser.add_argument("--workload", choices=("cnn", *REPLAYS), default="cnn")
    parser.add_argument(
        "--network-hosts", type=int, help="extrapolate a network of so many hosts"
    )
    parser.add_argument("--tuning", type=float, default=240, help="budget of tune")
    arguments = parser.parse_args()
    require_hosts()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / AFTER).mkdir()
        plans, written = run(arguments, folder)
        seconds = written["seconds"]
        costs = profile, network = costs_in(folder)
        rounds_s = written["computation_s"]
        rows = tables.lines(seconds, plans, profile)
        loaded = {each: Plan.load(path) for each, path in plans.items()}
        steady = at_rounds_speed(rows, loaded, costs, rounds_s)
        steady_off = tables.errors_of(steady)
        after = None if arguments.network_hosts else costs_in(folder / AFTER)
        tunings = {
            name: Tuning.load(folder / name / TUNING_FILE)
            for name in TUNINGS
            if name in plans
        }
    ddp_s = next(row.measured_s for row in rows if row.name == "ddp")
    title = f"{profile.model.name}, {arguments.hosts} hosts at {arguments.rate}"
    size = f"{arguments.hosts}x{arguments.rate}"
    if arguments.network_hosts:
        title += f", network measured on {arguments.network_hosts}"
        size += f"-from-{arguments.network_hosts}"
    parts = [
        f"# Predictions: {title}",
        tables.comparison(rows, ddp_s),
        "What the buckets are:",
        "\n".join(f"- {each}: {choice(plan)}." for each, plan in loaded.items()),
        "When what happens in an iteration, predicted and measured:",
        where(loaded, written["moments"]),
        f"- Predictions: {tables.error_sentence(rows)}.\n"
        f"{tuned_sentence(rows, seconds, arguments.iterations, tunings)}"
        f"- Forward {units.seconds(profile.forward_s)}, backward "
        f"{units.seconds(profile.backward_s)}, waiting for each other "
        f"{units.seconds(profile.waiting_s)}, handoff "
        f"{units.seconds(profile.handoff_s)}; {units.nbytes(profile.nbytes)} of "
        "gradients.\n"
        f"- {rows[0].iterations} timed iterations a variant, in turns within one run; "
        "an iteration's time is the mean of the ranks. "
        f"{scatter_sentence(seconds, arguments.iterations)}\n"
        f"- {drift_sentence(profile, rounds_s)} Predictions at that speed: "
        f"{tables.error_sentence(steady)}.\n"
        f"{after_sentence(after, rows, loaded, costs)}"
        f"- {same_sentence(loaded)}",
    ]
    documents = {"profile": profile, "network": network, "tuning": tunings.get(TUNED)}
    if after is not None:
        documents |= {"profile-after": after[0], "network-after": after[1]}
    for kind, document in documents.items():
        if document is not None:
            document.save(tables.RESULTS / f"{kind}-{arguments.workload}-{size}.json")
    print(
        tables.save(
            f"predictions-{arguments.workload}-{size}",
            parts,
            {
                "rows": [asdict(row) for row in rows],
                "times_s": seconds,
                "moments_s": written["moments"],
                "computation_s": rounds_s,
                "at_rounds_speed": steady_off and asdict(steady_off),
            },
        )
    )


if __name__ == "__main__":
    main()
