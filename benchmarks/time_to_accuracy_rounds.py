"""A rank of :mod:`time_to_accuracy`: trains every variant until it is good enough.

The variants of a seed follow one another, in one order and for the next seed in the
other. Each starts from the seed's parameters and takes its batches. Seconds are
those of the iterations, the mean of the ranks; evaluations are not counted, but that
local steps have to end a round before them is. Rank 0 writes a list of
:class:`Outcome` as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from comm_plan.benchmarks import ddp_hooks
from comm_plan.plans import Plan
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.iteration import iterate
from comm_plan.transports.base import Transport
from comm_plan.transports.connect import connect
from comm_plan.workloads import load
from comm_plan.workloads.base import Workload, endless
from comm_plan.workloads.seeding import seed_all


@dataclass(frozen=True)
class Variant:
    """How a training averages its gradients.

    Attributes:
        name: of all its trainings, whatever the learning rate.
        plan: path of the plan of the engine; None: stock DDP.
        cap_mb: DDP's ``bucket_cap_mb``.
        hook: DDP's communication hook: ``fp16``, ``powersgd RANK`` or none.
        rate: its learning rate over the workload's.
    """

    name: str
    plan: str | None = None
    cap_mb: float = 25.0
    hook: str | None = None
    rate: float = 1.0


@dataclass(frozen=True)
class Goal:
    """When a training is good enough.

    Attributes:
        value: of the workload's metric; a loss must fall to it, another rise.
        every: steps between two evaluations.
        most_steps: a training that takes more has failed.
    """

    value: float
    every: int
    most_steps: int

    def reached(self, metric: str, value: float) -> bool:
        """Return whether ``value`` is good enough."""
        return value <= self.value if metric == "loss" else value >= self.value


@dataclass(frozen=True)
class Outcome:
    """One training.

    Attributes:
        variant: its name.
        rate: its learning rate over the workload's.
        seed: of the parameters and the data.
        steps: taken.
        seconds: of all these steps.
        value: of the metric at the end.
        reached: whether that is good enough.
    """

    variant: str
    rate: float
    seed: int
    steps: int
    seconds: float
    value: float
    reached: bool


@contextmanager
def averaging(
    variant: Variant, workload: Workload, transport: Transport, seed: int
) -> Iterator[tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]]:
    """Lend model and optimizer of a training by ``variant``, and what ends a round."""
    model = workload.model.train()
    optimizer = workload.optimizer(model.parameters())
    for group in optimizer.param_groups:
        group["lr"] *= variant.rate
    if variant.plan is not None:
        plan = Plan.load(variant.plan)
        with Engine(
            model,
            plan,
            transport,
            seed=seed,
            gradient_as_bucket_view=True,
            optimizer=optimizer,
        ) as engine:
            yield model, optimizer, engine.synchronise
        return
    ddp = DistributedDataParallel(
        model, bucket_cap_mb=variant.cap_mb, gradient_as_bucket_view=True
    )
    ddp_hooks.register(ddp, variant.hook)
    yield ddp, optimizer, lambda: None


def train(
    variant: Variant, goal: Goal, seed: int, of: str, transport: Transport
) -> Outcome:
    """Train ``of`` from the start until ``goal`` is reached; every rank calls this."""
    workload = load(of, seed=seed)
    seed_all(seed * transport.world_size + transport.rank)
    batches = endless(workload.batches, transport.rank, transport.world_size, seed)
    own_s: list[float] = []
    metric, value, reached = "", float("nan"), False
    with averaging(variant, workload, transport, seed) as parts:
        model, optimizer, end_round = parts
        while not reached and len(own_s) < goal.most_steps:
            for batch in itertools.islice(batches, goal.every):
                step = iterate(workload.loss, model, optimizer, batch)
                own_s.append(step[1])
            begun_s = time.perf_counter()
            end_round()
            own_s[-1] += time.perf_counter() - begun_s
            if transport.rank == 0:
                measured = workload.evaluate(workload.model)
                assert measured is not None
                metric, value = measured
                reached = goal.reached(metric, value)
            reached = transport.broadcast_object(reached)
    seconds = float(np.mean(transport.gather_objects(own_s), axis=0).sum())
    return Outcome(
        variant.name, variant.rate, seed, len(own_s), seconds, value, reached
    )


def main() -> None:
    """Run as one rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload")
    parser.add_argument("variants", type=Path, help="JSON: list of Variants")
    parser.add_argument("output", type=Path)
    parser.add_argument("--goal", type=float, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--most-steps", type=int, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    read = json.loads(arguments.variants.read_text())
    variants = [Variant(**fields) for fields in read]
    goal = Goal(arguments.goal, arguments.every, arguments.most_steps)
    outcomes: list[Outcome] = []
    with connect("gloo") as transport:
        for seed in range(arguments.seeds):
            for variant in reversed(variants) if seed % 2 else variants:
                of = arguments.workload
                outcomes.append(train(variant, goal, seed, of, transport))
                if transport.rank == 0:
                    written = [asdict(outcome) for outcome in outcomes]
                    arguments.output.write_text(json.dumps(written))


if __name__ == "__main__":
    main()
