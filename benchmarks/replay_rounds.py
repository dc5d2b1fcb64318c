"""Runs as one rank: times one replayed model under several plans and under DDP.

All variants live in one process and take turns, round by round, so that whatever else
the machine does falls on all of them alike. An iteration's time is that of the slowest
rank. Rank 0 writes ``variant -> [seconds of every iteration]`` as JSON.

    python -m comm_plan.benchmarks.replay_rounds PROFILE OUTPUT \
        --plan optimal=plan.json --ddp --ddp-fp16 --rounds 5 --iterations 4
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from comm_plan.plans import Plan
from comm_plan.runtime import Engine
from comm_plan.transports.distributed import TorchTransport
from comm_plan.workloads import Workload
from comm_plan.workloads.replay import replay

Step = Callable[[], None]


def planned_step(profile: str, plan: Plan) -> Step:
    """Return one training step of the replayed model under ``plan``."""
    workload = replay(profile)
    model = workload.model
    Engine(
        model,
        plan,
        TorchTransport(),
        broadcast_buffers=False,
        gradient_as_bucket_view=True,
    )
    optimizer = workload.optimizer(model.parameters())
    return _step(workload, model, optimizer)


def ddp_step(profile: str, fp16: bool) -> Step:
    """Return one training step of the replayed model under stock DDP."""
    workload = replay(profile)
    model = DistributedDataParallel(workload.model, broadcast_buffers=False)
    if fp16:
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = workload.optimizer(model.parameters())
    return _step(workload, model, optimizer)


def alone_step(profile: str) -> Step:
    """Return one training step without communication: the floor."""
    workload = replay(profile)
    optimizer = workload.optimizer(workload.model.parameters())
    return _step(workload, workload.model, optimizer)


def _step(
    workload: Workload, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Step:
    batch = next(iter(workload.batches(0, 1, 0, 0)))

    def step() -> None:
        optimizer.zero_grad()
        workload.loss(model, batch).backward()
        optimizer.step()

    return step


def time_rounds(
    steps: dict[str, Step], rounds: int, iterations: int
) -> dict[str, list[float]]:
    """Return this rank's seconds of every timed iteration, variant by variant.

    The first iteration of each turn is not timed: it meets cold caches and the other
    variant's memory.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            dist.barrier()
            step()
            for _ in range(iterations):
                start = time.perf_counter()
                step()
                times[name].append(time.perf_counter() - start)
    return times


def of_all_ranks(times: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the mean of the ranks, which wait for each other, of each iteration."""
    everyone: list[dict[str, list[float]]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, times)
    return {
        name: [mean(ranks) for ranks in zip(*(t[name] for t in everyone), strict=True)]
        for name in times
    }


def main() -> None:
    """Run as one rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile")
    parser.add_argument("output", type=Path)
    parser.add_argument("--plan", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--ddp-fp16", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    steps: dict[str, Step] = {}
    for name, path in (plan.split("=", 1) for plan in arguments.plan):
        steps[name] = planned_step(arguments.profile, Plan.load(path))
    if arguments.ddp:
        steps["ddp"] = ddp_step(arguments.profile, fp16=False)
    if arguments.ddp_fp16:
        steps["ddp-fp16"] = ddp_step(arguments.profile, fp16=True)
    if arguments.alone:
        steps["alone"] = alone_step(arguments.profile)
    times = of_all_ranks(time_rounds(steps, arguments.rounds, arguments.iterations))
    if dist.get_rank() == 0:
        arguments.output.write_text(json.dumps(times))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
