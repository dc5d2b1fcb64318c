"""Sparse methods when every rank has other data: digits, each rank its own classes.

    python -m comm_plan.benchmarks.skewed_ranks

The images are sorted by their label and cut into a part for each of the ranks, so that
a rank sees at most four of the ten digits and its gradients differ from the others' as
much as they can. Beside it the usual shuffled shards. 4 ranks on gloo, one bucket,
every tensor at 1 %, the same initial parameters and number of steps. Finished runs are
kept in ``results/skewed-ranks.json`` and not trained again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import mean
from typing import Any

import torch

from comm_plan.benchmarks import tables
from comm_plan.benchmarks.commands import module
from comm_plan.plans import METHODS, Bucket, Plan, PlannedModel
from comm_plan.plans.parameters import model_fingerprint, trainable
from comm_plan.runtime.trainer import Options, train
from comm_plan.transports.connect import connect
from comm_plan.transports.launch import run_local
from comm_plan.workloads import load
from comm_plan.workloads.base import Workload
from comm_plan.workloads.data import random_stream

RANKS, STEPS, BATCH_SIZE, SEEDS = 4, 220, 32, (0, 1, 2)
WAYS = ("dense", "topk", "gtopk", "spardl", "partition-topk")
OPTIMIZERS = {
    "momentum 0.9": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "no momentum": partial(torch.optim.SGD, lr=0.5),
}
SETTINGS = [(data, of) for data in ("shuffled", "by class") for of in OPTIMIZERS]
FILE = tables.RESULTS / "skewed-ranks.json"


def main() -> None:
    """Train what is not there yet, print the table and save it."""
    for seed in SEEDS:
        code = run_local(module(__spec__.name, "rank", seed), RANKS)
        if code:
            sys.exit(code)
    headings = ["method", *(f"{data}, {of}" for data, of in SETTINGS)]
    rows = [
        [way, *(shown(f"{way}, {data}, {of}") for data, of in SETTINGS)] for way in WAYS
    ]
    meaning = (
        f"digits, {RANKS} ranks, {STEPS} steps, batch {BATCH_SIZE} a rank, density "
        f"1 %: held-out accuracy, mean and range of {len(SEEDS)} seeds. By class: a "
        "rank sees at most four of the ten digits."
    )
    table = tables.markdown(headings, rows)
    print(tables.save("skewed-ranks", [meaning, table], {"runs": finished()}))


def shown(variant: str) -> str:
    """Return mean and range of the accuracy of ``variant``."""
    values = [100 * run["value"] for run in finished() if run["variant"] == variant]
    return f"{mean(values):.2f} % ({min(values):.1f}-{max(values):.1f})"


def finished() -> list[dict[str, Any]]:
    """Return the runs so far: variant, seed and accuracy."""
    runs: list[dict[str, Any]] = []
    if FILE.exists():
        runs = json.loads(FILE.read_text())["runs"]
    return runs


def rank(seed: int) -> None:
    """Be one rank: train all that is not there of ``seed``."""
    torch.set_num_threads(1)
    done = {run["variant"] for run in finished() if run["seed"] == seed}
    with connect("gloo") as transport:
        for data, optimizer in SETTINGS:
            for way in WAYS:
                variant = f"{way}, {data}, {optimizer}"
                if variant in done:
                    continue
                workload = digits(seed, optimizer, by_class=data == "by class")
                options = Options(steps=STEPS, seed=seed)
                record = train(workload, plan(workload, way), transport, options)
                if transport.rank == 0:
                    value = record.evaluations[-1].value
                    run = {"variant": variant, "seed": seed, "value": value}
                    FILE.write_text(json.dumps({"runs": [*finished(), run]}))


def plan(workload: Workload, way: str) -> Plan:
    """Return the plan of one bucket by the method ``way``."""
    compressor, collective = METHODS[way]
    names = tuple(trainable(workload.model))[::-1]
    return Plan(
        solver="single",
        model=PlannedModel(
            name=workload.name, fingerprint=model_fingerprint(workload.model)
        ),
        world_size=RANKS,
        backend="gloo",
        buckets=(Bucket(tensors=names, compressor=compressor, collective=collective),),
    )


def digits(seed: int, optimizer: str, by_class: bool) -> Workload:
    """Return ``digits`` with another optimizer, and perhaps with classes by rank."""
    made = load("digits", seed=seed, batch_size=BATCH_SIZE)
    made = replace(made, optimizer=OPTIMIZERS[optimizer])
    return replace(made, batches=partial(_by_class, made)) if by_class else made


def _by_class(
    workload: Workload, rank: int, world_size: int, epoch: int, seed: int
) -> Iterator[Any]:
    """Yield as many batches as shuffled shards have, all of this rank's classes."""
    batches = list(workload.batches(0, 1, 0, 0))
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    own = labels.argsort(stable=True).tensor_split(world_size)[rank]
    order = own[torch.randperm(len(own), generator=random_stream(seed, epoch))]
    size = workload.batch_size
    for start in range(0, len(labels) // world_size - size + 1, size):
        rows = order[start : start + size]
        yield images[rows], labels[rows]


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(int(sys.argv[2]))
    else:
        main()
