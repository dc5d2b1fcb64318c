"""A user's own loop on local ranks, of which one goes wrong at a random moment.

It is killed, stopped, or raises. All others must end by themselves, soon, and say which
rank it was. Writes a table (Markdown) and the figures (JSON) to ``benchmarks/results``.

    python -m comm_plan.benchmarks.deaths --times 100
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from comm_plan import units
from comm_plan.benchmarks import tables
from comm_plan.benchmarks.commands import module
from comm_plan.transports.launch import rank_variables, reserved_port

RANKS = 3
SIGNALS = {
    "killed": signal.SIGKILL,
    "raises": signal.SIGUSR1,
    "stopped": signal.SIGSTOP,
}
CAUSES = {
    "killed": "rank {} died",
    "raises": "rank {} failed: the user's own error",
    "stopped": "rank {} is silent",
}
WITHIN_S = {"killed": 10.0, "raises": 10.0, "stopped": 20.0}
EVERY = ("killed", "raises", "killed", "raises", "stopped")
"""The fates in turn: waiting for one that is stopped takes longest."""

GIVEN_UP_S = 60.0


@dataclass(frozen=True)
class Death:
    """What became of the others.

    Attributes:
        fate: of the one rank.
        rank: which one.
        took_s: until all others had ended.
        named: whether all of them named it.
    """

    fate: str
    rank: int
    took_s: float
    named: bool

    @property
    def good(self) -> bool:
        """Whether all others ended in time and named it."""
        return self.named and self.took_s <= WITHIN_S[self.fate]


def train() -> None:
    """Train without end, as one rank."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from comm_plan import parallelize
    from comm_plan.plans import Bucket, Plan, PlannedModel
    from comm_plan.plans.parameters import model_fingerprint, trainable

    def fail(*_: object) -> None:
        raise ValueError("the user's own error")

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 16))
    names = tuple(trainable(model))[::-1]
    plan = Plan(
        solver="by hand",
        model=PlannedModel(name="loop", fingerprint=model_fingerprint(model)),
        world_size=dist.get_world_size(),
        backend="gloo",
        buckets=(Bucket(tensors=names[:2]), Bucket(tensors=names[2:])),
    )
    parallelize(model, plan)
    signal.signal(signal.SIGUSR1, fail)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    print("training", flush=True)
    while True:
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()


def let_one_die(fate: str) -> Death:
    """Return what becomes of the others when a random rank meets ``fate``."""
    with ExitStack() as running:
        port = running.enter_context(reserved_port())
        processes = [_start(rank, port) for rank in range(RANKS)]
        for process in processes:
            running.callback(process.wait)
            running.callback(process.kill)
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        time.sleep(random.uniform(0.0, 2.0))
        victim = random.randrange(RANKS)
        processes[victim].send_signal(SIGNALS[fate])
        begin_s = time.monotonic()
        others = [p for rank, p in enumerate(processes) if rank != victim]
        errors = [_last_words(process) for process in others]
        took_s = time.monotonic() - begin_s
    cause = CAUSES[fate].format(victim)
    return Death(fate, victim, took_s, all(cause in error for error in errors))


def _start(rank: int, port: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        module("comm_plan.benchmarks.deaths", "--train"),
        env={**os.environ, **rank_variables(rank, RANKS, port)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _last_words(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=GIVEN_UP_S)[1]
    except subprocess.TimeoutExpired:
        return "never ended"


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--train", action="store_true", help="run as one rank")
    arguments = parser.parse_args()
    if arguments.train:
        train()
    deaths = [
        let_one_die(EVERY[number % len(EVERY)]) for number in range(arguments.times)
    ]
    print(save(deaths))
    sys.exit(not all(death.good for death in deaths))


def save(deaths: Sequence[Death]) -> str:
    """Write the table and the figures; return the table."""
    rows = []
    for fate in SIGNALS:
        of_fate = [death for death in deaths if death.fate == fate]
        if of_fate:
            took_s = [death.took_s for death in of_fate]
            good = sum(death.good for death in of_fate)
            times = statistics.median(took_s), max(took_s)
            rows.append([fate, len(of_fate), good, *map(units.seconds, times)])
    head = ["one rank is", "times", "named in time", "others ended after", "at most"]
    parts = [
        "# One of three ranks of a user's own loop goes wrong",
        tables.markdown(head, rows),
        "At a random moment, on one machine; in time is 10 s, for a stopped one 20 s.",
    ]
    return tables.save("deaths", parts, {"deaths": [asdict(d) for d in deaths]})


if __name__ == "__main__":
    main()
