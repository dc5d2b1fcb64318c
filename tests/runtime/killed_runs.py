"""Trainings of two ranks, killed at random moments and resumed, again and again.

    python -m comm_plan.tests.runtime.killed_runs --times 200

Prints how often they ended with other parameters than an uninterrupted run of the same
method; never must they. Every method has its turn.

The ranks are forked, so that torch is imported once. Both get SIGKILL, one a little
later than the other, while they meet, train, write a checkpoint, or resume.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from comm_plan.runtime.trainer import Options, train
from comm_plan.tests.runtime.trainings import (
    EPOCH_STEPS,
    METHODS,
    net,
    plan_for,
    workload,
)
from comm_plan.transports.distributed import TorchTransport

RANKS = 2
STEPS = 2 * EPOCH_STEPS + 3
MOST_KILLS = 3
"""In a row, before a training may end."""

APART_S = 0.05
"""At most so long after the first rank the second is killed."""


def train_as(rank: int, method: str, folder: Path, attempt: int) -> None:
    """Train as one rank, from a checkpoint if there is one; rank 0 says the result."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store-{attempt}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=200),
    )
    training = workload(net(nn.Dropout(0.3)), world_size=RANKS)
    plan = plan_for(training.model, RANKS, *METHODS[method])
    options = Options(
        steps=STEPS, checkpoint=folder / "c", checkpoint_every=2, elastic=True
    )
    record = train(training, plan, TorchTransport(), options)
    if rank == 0:
        (folder / "result").write_text(record.parameters_sha256)
    dist.destroy_process_group()


def fork_ranks(method: str, folder: Path, attempt: int) -> list[int]:
    """Start the ranks; return their process ids."""
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            try:
                train_as(rank, method, folder, attempt)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return children


def result(method: str, kill_after_s: Sequence[float] = ()) -> tuple[str, int]:
    """Return the parameters of a training, and how often it really was killed.

    Args:
        method: of ``METHODS``.
        kill_after_s: seconds after each start.
    """
    killed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for attempt, wait_s in enumerate([*kill_after_s, None]):
            children = fork_ranks(method, folder, attempt)
            if wait_s is not None:
                time.sleep(wait_s)
                kill(children)
            ends = [os.waitpid(child, 0)[1] for child in children]
            if not any(ends):
                return (folder / "result").read_text(), killed
            assert wait_s is not None, "it failed by itself"
            killed += 1
    raise AssertionError("it never ended")


def kill(children: Sequence[int]) -> None:
    """Kill the ranks in any order, one a little after the other."""
    for child in random.sample(children, len(children)):
        os.kill(child, signal.SIGKILL)
        time.sleep(random.uniform(0, APART_S))


def main() -> int:
    """Run it; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=200)
    times = parser.parse_args().times
    torch.set_num_threads(1)
    whole: dict[str, str] = {}
    kills = different = 0
    shortest_s = math.inf  # of an undisturbed training: most kills come before its end
    for number in range(times):
        method = list(METHODS)[number % len(METHODS)]
        if method not in whole:
            begun_s = time.monotonic()
            whole[method], _ = result(method)
            shortest_s = min(shortest_s, time.monotonic() - begun_s)
        moments = [
            random.uniform(0, shortest_s) for _ in range(random.randint(1, MOST_KILLS))
        ]
        parameters, killed = result(method, moments)
        kills += killed
        print(f"{number + 1} of {times}: {method}, killed {killed} times", flush=True)
        if parameters != whole[method]:
            different += 1
            print(f"{method}, killed after {moments} s: other parameters", flush=True)
    print(f"{times} trainings, {kills} kills, {different} with other parameters")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
