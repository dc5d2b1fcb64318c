"""Runs as one rank: times ways to add up one gradient over all ranks.

Messages are made once, before the clock starts, by the real compressors: dense float32
zeros, or the top k of normal random numbers, independent from rank to rank. The ways
take turns. A time is that of the slowest rank, behind a barrier. Rank 0 writes for
every way the bytes of a rank's message, the seconds, the processor seconds of all ranks
together, and for gTop-k what merging takes by itself. With ``--network`` it also writes
what a point-to-point message costs here.

    python -m comm_plan.benchmarks.aggregation_rounds OUTPUT --methods dense,gtopk
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from comm_plan.collectives.costs import rounds
from comm_plan.collectives.gtopk import as_sparse
from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.collectives.top_of_sum import merger
from comm_plan.commbench.sweep import geometric_sizes, measure
from comm_plan.compressors import build
from comm_plan.compressors.base import Compressor, Context, Slot
from comm_plan.plans import METHODS, Spec, TopK
from comm_plan.transports.base import Transport
from comm_plan.transports.distributed import TorchTransport

Aggregate = Callable[[], int]

SHORTEST_NBYTES, LONGEST_NBYTES = 2**10, 2**24
"""The range of the point-to-point messages."""

MERGES = 9


@dataclass
class Timed:
    """One way, iteration by iteration."""

    message_nbytes: int = 0
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    merging_s: float = 0.0


def aggregation(
    method: str, numel: int, density: float, transport: Transport
) -> Aggregate:
    """Return one aggregation of a message that is ready; it returns its bytes."""
    named, collective = METHODS[method]
    spec = named.at_density(density)
    codec = _filled(spec, collective, numel, transport)
    return lambda: COLLECTIVES[collective].aggregate(transport, codec)


def _filled(
    spec: Spec, collective: str, numel: int, transport: Transport
) -> Compressor:
    context = Context(transport.world_size, transport.rank, transport.device)
    codec = build(spec, collective, [Slot("gradient", numel)], context)
    if spec.lossless:  # zeros stay finite however often they are summed
        gradient = torch.zeros(numel)
    else:
        generator = torch.Generator().manual_seed(transport.rank)
        gradient = torch.randn(numel, generator=generator)
    codec.add(0, gradient)
    return codec


def merging_s(numel: int, density: float, transport: Transport) -> float:
    """Return what sorting and merging take in a gTop-k tree, on all ranks at once."""
    codec = as_sparse(_filled(TopK(density=density), "gtopk", numel, transport))
    merge = merger(codec.counts, transport.device)
    values, indices = codec.encode()
    others = values, (indices + 1) % numel

    def seconds(work: Callable[[], object]) -> float:
        times = []
        for _ in range(MERGES):
            start_s = time.perf_counter()
            work()
            times.append(time.perf_counter() - start_s)
        return statistics.median(times)

    mine, theirs = merge.prepare((values, indices)), merge.prepare(others)
    dist.barrier()
    once_s = seconds(lambda: merge.prepare((values, indices)))
    each_s = seconds(lambda: merge(mine, theirs))
    return once_s + rounds(transport.world_size) * each_s


def time_rounds(
    ways: dict[str, Aggregate], turns: int, repeats: dict[str, int]
) -> dict[str, Timed]:
    """Return this rank's times; a warm-up of each way comes first."""
    timed = {name: Timed(message_nbytes=way()) for name, way in ways.items()}
    for _ in range(turns):
        for name, way in ways.items():
            for _ in range(repeats[name]):
                dist.barrier()
                cpu_s, start_s = time.process_time(), time.perf_counter()
                way()
                timed[name].seconds.append(time.perf_counter() - start_s)
                timed[name].cpu_s.append(time.process_time() - cpu_s)
    return timed


def of_all_ranks(ranks: list[dict[str, Timed]]) -> dict[str, Timed]:
    """Return the slowest rank's seconds and the sum of the processor seconds."""
    return {
        name: Timed(
            first.message_nbytes,
            [max(t) for t in zip(*(r[name].seconds for r in ranks), strict=True)],
            [sum(t) for t in zip(*(r[name].cpu_s for r in ranks), strict=True)],
            max(rank[name].merging_s for rank in ranks),
        )
        for name, first in ranks[0].items()
    }


def main() -> None:
    """Run as one rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--methods", default="dense,topk,gtopk")
    parser.add_argument("--numel", type=int, default=25_600_000)
    parser.add_argument("--density", type=float, default=0.001)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--sparse-repeats", type=int, default=5)
    parser.add_argument("--network", type=Path, help="measure point to point, save it")
    parser.add_argument("--budget", type=float, default=10, help="seconds for that")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    transport = TorchTransport()
    if arguments.network is not None:
        sizes = geometric_sizes(SHORTEST_NBYTES, LONGEST_NBYTES)
        network = measure(transport, ["point_to_point"], sizes, arguments.budget)
        if transport.rank == 0:
            network.save(arguments.network)
    ways = {
        method: aggregation(method, arguments.numel, arguments.density, transport)
        for method in arguments.methods.split(",")
    }
    repeats = {
        method: arguments.sparse_repeats if METHODS[method][0].sparse else 1
        for method in ways
    }
    timed = time_rounds(ways, arguments.rounds, repeats)
    if "gtopk" in timed:
        timed["gtopk"].merging_s = merging_s(
            arguments.numel, arguments.density, transport
        )
    timed = of_all_ranks(transport.gather_objects(timed))
    if transport.rank == 0:
        found = {name: asdict(times) for name, times in timed.items()}
        arguments.output.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
