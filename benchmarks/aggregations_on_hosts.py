"""Dense, top-k by all-gather and gTop-k on emulated hosts, beside their closed forms.

Only the aggregation is timed: the messages are made before. Each number of hosts is one
run in which the ways take turns, with alpha and beta of a point-to-point message
measured in the same run. Then the bytes that the hosts' interfaces really sent are held
against the volume of the closed forms. Needs root on Linux. Writes a table (Markdown)
and the figures (JSON) to ``benchmarks/results``, anew after every run.

    python -m comm_plan.benchmarks.aggregations_on_hosts --hosts 2 4 8 16
"""

import argparse
import json
import os
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comm_plan import units
from comm_plan.benchmarks import tables
from comm_plan.benchmarks.commands import module, require_hosts, run_all
from comm_plan.benchmarks.hosts import EmulatedHosts
from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.planner.collective_cost import collective_curve
from comm_plan.plans import METHODS, Network

WAYS = {name: METHODS[name][1] for name in ("dense", "topk", "gtopk")}
"""The collective of each method that is compared."""

WIRE_NUMEL, WIRE_DENSITY, WIRE_ROUNDS = 2_000_000, 0.02, 5

PUBLISHED = """\
Published (gTop-k paper, 32 workers, 1 Gbit/s Ethernet, density 0.001), images per
second of whole training: VGG-16 dense 403, top-k 2016, gTop-k 3020; ResNet-50 343, 978,
1251; AlexNet 39, 296, 505. So gTop-k over dense is 7.5x, 3.6x and 12.9x there, over
top-k 1.5x, 1.3x and 1.7x. The table above is of the aggregation alone and of fewer
hosts."""


@dataclass(frozen=True)
class Row:
    """One way on one number of hosts.

    Attributes:
        message_nbytes: what one rank contributes.
        closed_form_s: from one alpha and one beta.
        from_messages_s: from the measured curve of a point-to-point message.
        merging_s: of measured_s, sorting and merging in the gTop-k tree.
        cpu_share: processor time of all ranks over what the machine could give.
    """

    hosts: int
    method: str
    message_nbytes: int
    measured_s: float
    closed_form_s: float
    from_messages_s: float
    merging_s: float
    cpu_share: float
    iterations: int


@dataclass(frozen=True)
class Wire:
    """Bytes that all hosts together sent for one aggregation."""

    hosts: int
    method: str
    closed_form_nbytes: int
    sent_nbytes: float


def alpha_beta(network: Network) -> tuple[float, float]:
    """Return what the shortest message takes, and a byte of the longest ones."""
    cost = network.collectives["point_to_point"]
    assert cost.fit is not None
    return cost.samples[0].median_s, cost.fit.segments[-1].beta_s_per_byte


def rows(count: int, found: dict[str, dict[str, Any]], network: Network) -> list[Row]:
    """Return what ``count`` hosts took, method by method."""
    alpha_s, beta = alpha_beta(network)
    result = []
    for method, timed in found.items():
        collective, seconds = COLLECTIVES[WAYS[method]], timed["seconds"]
        nbytes = collective.buffer_nbytes(timed["message_nbytes"], count)
        capacity_s = sum(seconds) * (os.cpu_count() or 1)
        result.append(
            Row(
                hosts=count,
                method=method,
                message_nbytes=timed["message_nbytes"],
                measured_s=statistics.median(seconds),
                closed_form_s=collective.terms(count).seconds(nbytes, alpha_s, beta),
                from_messages_s=float(
                    collective_curve(network, collective.name, count)(nbytes)
                ),
                merging_s=timed["merging_s"],
                cpu_share=sum(timed["cpu_s"]) / capacity_s,
                iterations=len(seconds),
            )
        )
    return result


def on_the_wire(hosts: EmulatedHosts, folder: Path) -> list[Wire]:
    """Return what one aggregation of each method sends.

    The difference between a long and a short run is that of the aggregations alone:
    both meet and part in the same way.
    """
    return [_wire(hosts, folder, method) for method in WAYS]


def _wire(hosts: EmulatedHosts, folder: Path, method: str) -> Wire:
    def sent_nbytes(rounds: int) -> int:
        before = sum(sent for _, sent in hosts.interface_bytes())
        run_all(
            hosts,
            module(
                "comm_plan.benchmarks.aggregation_rounds", output, "--methods", method,
                "--numel", WIRE_NUMEL, "--density", WIRE_DENSITY,
                "--rounds", rounds, "--sparse-repeats", 1,
            ),
        )  # fmt: skip
        return sum(sent for _, sent in hosts.interface_bytes()) - before

    output = folder / "wire.json"
    sent = (sent_nbytes(1 + WIRE_ROUNDS) - sent_nbytes(1)) / WIRE_ROUNDS
    message_nbytes = json.loads(output.read_text())[method]["message_nbytes"]
    return Wire(
        hosts=hosts.count,
        method=method,
        closed_form_nbytes=total_nbytes(method, message_nbytes, hosts.count),
        sent_nbytes=sent,
    )


def total_nbytes(method: str, message_nbytes: int, hosts: int) -> int:
    """Return what all hosts together send."""
    collective = COLLECTIVES[WAYS[method]]
    nbytes = collective.buffer_nbytes(message_nbytes, hosts)
    return round(collective.sent_by_all(hosts) * nbytes)


def timing_table(timed: list[Row]) -> str:
    """Return measured beside predicted."""
    head = ["way", "hosts", "message", "measured", "of which merging", "closed form"]
    head += ["ratio", "from messages", "ratio", "CPU"]
    return tables.markdown(
        head,
        [
            [
                row.method,
                row.hosts,
                units.nbytes(row.message_nbytes),
                units.seconds(row.measured_s),
                units.seconds(row.merging_s) if row.merging_s else None,
                units.seconds(row.closed_form_s),
                f"{row.measured_s / row.closed_form_s:.2f}",
                units.seconds(row.from_messages_s),
                f"{row.measured_s / row.from_messages_s:.2f}",
                f"{row.cpu_share:.0%}",
            ]
            for row in timed
        ],
    )


def wire_table(wires: list[Wire]) -> str:
    """Return the bytes that were sent beside those that the closed forms say."""
    return tables.markdown(
        ["way", "hosts", "closed form, all hosts", "sent by all hosts", "ratio"],
        [
            [
                wire.method,
                wire.hosts,
                units.nbytes(wire.closed_form_nbytes),
                units.nbytes(wire.sent_nbytes),
                f"{wire.sent_nbytes / wire.closed_form_nbytes:.3f}",
            ]
            for wire in wires
        ],
    )


def crossover(timed: list[Row]) -> str:
    """Return at which numbers of hosts gTop-k beats top-k by all-gather."""
    seconds = {(row.hosts, row.method): row for row in timed}
    counts = sorted({row.hosts for row in timed})

    def faster(of: str) -> str:
        won = [
            str(count)
            for count in counts
            if getattr(seconds[count, "gtopk"], of)
            < getattr(seconds[count, "topk"], of)
        ]
        return ", ".join(won) or "none of these"

    return (
        "gTop-k is faster than top-k by all-gather with this many hosts: "
        f"{faster('measured_s')} (measured), {faster('closed_form_s')} (closed forms, "
        f"which cross where 4 log2 P < 2 (P - 1), from 8 on)."
    )


def notes(arguments: argparse.Namespace, networks: dict[int, Network]) -> str:
    """Return what a reader must know of the table."""
    lines = {count: alpha_beta(network) for count, network in networks.items()}
    links = "; ".join(
        f"{count} hosts {units.seconds(alpha)} + {1e-6 / beta:.0f} MB/s"
        for count, (alpha, beta) in lines.items()
    )
    return "\n".join(
        [
            f"- One gradient of {arguments.numel:,} float32, density "
            f"{arguments.density:g}; medians of {arguments.rounds} dense and "
            f"{arguments.rounds * arguments.sparse_repeats} sparse aggregations, in "
            "turns; messages are made before the clock starts. Merging is measured by "
            "itself, on all hosts at once; ratios are measured over predicted.",
            f"- Point to point at {arguments.rate}: {links}. The closed form takes "
            "these two: what 1 KiB takes, and the slope of long messages; `from "
            "messages` takes the measured curve at the size of the messages that "
            "travel. Links let up to 128 kB pass at once, so short messages are faster "
            "than the line.",
            f"- All hosts share this machine's {os.cpu_count()} cores; `CPU` is the "
            "ranks' processor time over what the cores could give in the same time. "
            "Near 100 % the cores are measured, not the links.",
        ]
    )


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--wire-hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--numel", type=int, default=25_600_000)
    parser.add_argument("--density", type=float, default=0.001)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--sparse-repeats", type=int, default=5)
    parser.add_argument("--name", default="aggregations", help="of the results' files")
    arguments = parser.parse_args()
    require_hosts()
    timed: list[Row] = []
    wires: list[Wire] = []
    networks: dict[int, Network] = {}

    def write() -> str:
        title = f"# Aggregations on emulated hosts at {arguments.rate}"
        paragraphs = [title, timing_table(timed)]
        if networks:
            paragraphs += [crossover(timed), notes(arguments, networks), PUBLISHED]
        if wires:
            paragraphs += ["## On the wire", wire_table(wires), WIRE_NOTE]
        figures = {
            "rows": [asdict(row) for row in timed],
            "wire": [asdict(wire) for wire in wires],
            "point_to_point": {
                str(count): alpha_beta(network) for count, network in networks.items()
            },
        }
        return tables.save(arguments.name, paragraphs, figures)

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for count in arguments.hosts:
            with EmulatedHosts(count, arguments.rate) as hosts:
                found, network = timed_on(hosts, folder, arguments)
            timed += rows(count, found, network)
            networks[count] = network
            write()
        with EmulatedHosts(arguments.wire_hosts, arguments.rate) as hosts:
            wires += on_the_wire(hosts, folder)
    print(write())


WIRE_NOTE = f"""\
One aggregation of {WIRE_NUMEL:,} float32 at density {WIRE_DENSITY:g}, as the
interfaces of all hosts count it: headers, acknowledgements and the barrier before each
aggregation included, connecting not."""


def timed_on(
    hosts: EmulatedHosts, folder: Path, arguments: argparse.Namespace
) -> tuple[dict[str, dict[str, Any]], Network]:
    """Return the times of the methods, and what a message costs in the same run."""
    output, network = folder / "found.json", folder / "network.json"
    argv = module(
        "comm_plan.benchmarks.aggregation_rounds", output,
        "--numel", arguments.numel, "--density", arguments.density,
        "--rounds", arguments.rounds, "--sparse-repeats", arguments.sparse_repeats,
        "--network", network,
    )  # fmt: skip
    run_all(hosts, argv)
    return json.loads(output.read_text()), Network.load(network)


if __name__ == "__main__":
    main()
