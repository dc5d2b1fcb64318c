"""A rank of :mod:`predictions_on_hosts`: plans, and DDP without and with a hook.

Every variant runs in blocks, in one order and then in the other, on its own data from
the same state, with as long a warm-up, and gradients that are parts of buckets. Between
them, as often, the computation alone is timed as ``profile`` does. Rank 0 writes
{"seconds": {variant: of each iteration, the mean of the ranks}, "moments": {plan:
[{moment: seconds} of each block]}, "computation_s": what forward and backward took in
the median, on the slowest rank}.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
from torch.nn.parallel import DistributedDataParallel

from comm_plan.benchmarks import ddp_hooks
from comm_plan.plans import Plan, Timing
from comm_plan.profiler.ranks import slowest_of
from comm_plan.profiler.timings import Timings, Trial, joined
from comm_plan.profiler.waiting import Rendezvous
from comm_plan.runtime.iteration import iterate
from comm_plan.transports.base import Transport
from comm_plan.transports.connect import connect
from comm_plan.tuner.trials import WARM_UP, Trials, warm_up_before
from comm_plan.workloads import load
from comm_plan.workloads.base import Workload, endless

DDP = "ddp"
HOOKS = {DDP: None, "ddp, fp16 hook": "fp16"}
"""Stock DDP without and with a hook (:mod:`comm_plan.benchmarks.ddp_hooks`)."""

EVERY = 4
"""Variants between two blocks of the computation alone."""


def ddp_block(
    hook: str | None,
    workload: Workload,
    transport: Transport,
    iterations: int,
    warm_up: int,
) -> list[float]:
    """Return the seconds of each iteration by DDP, the mean of the ranks."""
    model = DistributedDataParallel(workload.model, gradient_as_bucket_view=True)
    ddp_hooks.register(model, hook)
    optimizer = workload.optimizer(model.parameters())
    batches = endless(workload.batches, transport.rank, transport.world_size)
    own = [
        iterate(workload.loss, model, optimizer, batch)[1]
        for batch in itertools.islice(batches, warm_up + iterations)
    ]
    of_ranks = np.array(transport.gather_objects(own))[:, warm_up:]
    mean: list[float] = of_ranks.mean(axis=0).tolist()
    return mean


class Computation:
    """Times forward and backward as the profiler does, whenever it is their turn.

    Args:
        workload: whose; its model is trained.
        transport: all ranks.
    """

    def __init__(self, workload: Workload, transport: Transport) -> None:
        self._transport = transport
        meet = Rendezvous(transport, workload.model).meet
        self._trial = Trial(workload, transport, meet)
        self._blocks: list[Timings] = []

    def block(self, iterations: int) -> None:
        """Time ``iterations`` on every rank."""
        self._blocks.append(self._trial.run(iterations, WARM_UP))

    def seconds(self) -> float:
        """Return what both took in the median, on the slowest rank."""
        of_ranks = self._transport.gather_objects(joined(self._blocks))
        timings = slowest_of(of_ranks)
        return float(np.median(timings.forward_s) + np.median(timings.backward_s))


def moments(timing: Timing) -> dict[str, float]:
    """Return when backward begins, the computation ends, and all is received."""
    return {
        "backward begins": timing.backward_start_s,
        "computation ends": timing.compute_end_s,
        "received": timing.buckets[-1].finish_s,
    }


def main() -> None:
    """Run as one rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload")
    parser.add_argument("output", type=Path)
    parser.add_argument("plans", nargs="+", metavar="NAME=PATH")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--ddp", nargs="+", choices=tuple(HOOKS), default=list(HOOKS))
    parser.add_argument("--on-nonfinite", choices=("skip", "propagate"), default="skip")
    arguments = parser.parse_args()
    pairs = (pair.split("=", 1) for pair in arguments.plans)
    plans = {name: Plan.load(path) for name, path in pairs}
    warm_up = max(map(warm_up_before, plans.values()))
    seconds: dict[str, list[float]] = {name: [] for name in (*arguments.ddp, *plans)}
    reached: dict[str, list[dict[str, float]]] = {name: [] for name in plans}
    with connect("gloo") as transport:
        computation = Computation(load(arguments.workload), transport)
        trials = Trials(
            load(arguments.workload), transport, on_nonfinite=arguments.on_nonfinite
        )
        for _ in range(arguments.rounds):
            for number, name in enumerate((*seconds, *reversed(seconds))):
                if number % EVERY == 0:
                    computation.block(arguments.iterations)
                if name in HOOKS:
                    seconds[name] += ddp_block(
                        HOOKS[name],
                        load(arguments.workload),
                        transport,
                        arguments.iterations,
                        warm_up,
                    )
                else:
                    block = trials.run(
                        plans[name], arguments.iterations, warm_up=warm_up
                    )
                    seconds[name] += block.seconds.tolist()
                    if block.timing is not None:
                        reached[name].append(moments(block.timing))
        written = {
            "seconds": seconds,
            "moments": reached,
            "computation_s": computation.seconds(),
        }
        if transport.rank == 0:
            arguments.output.write_text(json.dumps(written))


if __name__ == "__main__":
    main()
