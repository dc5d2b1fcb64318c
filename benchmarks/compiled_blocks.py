"""A transformer compiled as a whole and block by block, on two emulated hosts.

Each block travels in a bucket of its own. All variants run in turns within one run.
Needs root on Linux and a C++ compiler. Writes a table (Markdown) and the figures (JSON)
to ``benchmarks/results``.

    python -m comm_plan.benchmarks.compiled_blocks
"""

import argparse
import copy
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import comm_plan
from comm_plan import units
from comm_plan.benchmarks import tables
from comm_plan.benchmarks.commands import (
    hosts_parser,
    module,
    require_hosts,
    run_all,
)
from comm_plan.benchmarks.hosts import EmulatedHosts
from comm_plan.plans import Bucket, Plan, PlannedModel
from comm_plan.plans.parameters import model_fingerprint
from comm_plan.transports.base import Transport
from comm_plan.transports.connect import connect

WIDTH, LAYERS, HEADS, BATCH, LENGTH = 384, 6, 6, 4, 64
WARM_UP = 2
EAGER, WHOLE, BLOCKS = "not compiled", "compiled as a whole", "compiled by blocks"


def transformer() -> nn.Sequential:
    """Return blocks of about 1.8 million parameters each."""
    torch.manual_seed(0)
    blocks = (
        nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        for _ in range(LAYERS)
    )
    return nn.Sequential(*blocks)


def a_bucket_each(model: nn.Sequential, world_size: int) -> Plan:
    """Return the plan that sends each block of ``model`` when it is ready."""
    names = [
        [f"{index}.{name}" for name, _ in block.named_parameters()]
        for index, block in enumerate(model)
    ]
    return Plan(
        solver="by hand",
        model=PlannedModel(name="transformer", fingerprint=model_fingerprint(model)),
        world_size=world_size,
        backend="gloo",
        buckets=tuple(Bucket(tensors=tuple(block[::-1])) for block in names[::-1]),
    )


def variants(plan: Plan) -> dict[str, nn.Module]:
    """Return the same model, compiled or not."""
    model = transformer()
    whole, blocks = copy.deepcopy(model), copy.deepcopy(model)
    whole.compile()
    comm_plan.compile_blocks(blocks, plan)
    return {EAGER: model, WHOLE: whole, BLOCKS: blocks}


def rounds(transport: Transport, number: int, iterations: int) -> dict[str, Any]:
    """Return, by variant, seconds of iterations and when each bucket was ready."""
    torch.set_num_threads(1)
    plan = a_bucket_each(transformer(), transport.world_size)
    models = variants(plan)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    moments: dict[str, list[list[float]]] = {name: [] for name in models}
    x = torch.randn(BATCH, LENGTH, WIDTH)
    for _ in range(number):
        for name, model in models.items():
            with comm_plan.parallelize(model, plan, transport=transport) as engine:
                for step in range(WARM_UP + iterations):
                    model.zero_grad()
                    transport.barrier()
                    begin_s = time.perf_counter()
                    model(x).square().mean().backward()
                    took_s = time.perf_counter() - begin_s
                    last = engine.last_moments
                    marks = None if last is None else last.seconds()
                    if step >= WARM_UP and marks is not None:
                        seconds[name].append(took_s)
                        moments[name].append(marks.tolist())
    return {"seconds": seconds, "moments": moments}


def table(written: dict[str, Any]) -> str:
    """Return what was measured; ready times count from the start of backward."""
    rows: list[list[object]] = []
    for name, of_variant in written["seconds"].items():
        steps = [
            [mark - marks[0] for mark in marks[1 : 2 + LAYERS]]
            for marks in written["moments"][name]
        ]
        end_s, *ready_s = [
            statistics.median(column) for column in zip(*steps, strict=True)
        ]
        times = [statistics.median(of_variant), end_s, *ready_s]
        rows.append([name, *map(units.seconds, times)])
    buckets = [f"bucket {number}" for number in range(LAYERS)]
    return tables.markdown(["model", "iteration", "backward", *buckets], rows)


def main() -> None:
    """Measure and write the results, or run as one rank."""
    parser = hosts_parser(__doc__, rounds=4)
    parser.set_defaults(hosts=2)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        with connect("gloo") as transport:
            written = rounds(transport, arguments.rounds, arguments.iterations)
            if transport.rank == 0:
                arguments.train.write_text(json.dumps(written))
        return
    require_hosts()
    with (
        tempfile.TemporaryDirectory() as temporary,
        EmulatedHosts(arguments.hosts, arguments.rate) as hosts,
    ):
        output = Path(temporary) / "rounds.json"
        turns = "--rounds", arguments.rounds, "--iterations", arguments.iterations
        run_all(hosts, module(__spec__.name, "--train", output, *turns))
        written = json.loads(output.read_text())
    numel = sum(p.numel() for p in transformer().parameters())
    parts = [
        f"# A compiled transformer, {arguments.hosts} hosts at {arguments.rate}",
        table(written),
        f"{LAYERS} blocks, {numel / 1e6:.1f} million parameters, one bucket a block, "
        f"{arguments.rounds * arguments.iterations} iterations each, in turns within "
        "one run, medians of rank 0. When each bucket is ready counts from the start "
        "of backward. Forward, backward and communication, without an update.",
    ]
    print(tables.save("compiled-blocks", parts, written))


if __name__ == "__main__":
    main()
