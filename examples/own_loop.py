"""A training loop of your own, with one line for the plan.

Two processes on this machine::

    comm-plan benchmark-network --local-ranks 2 -o network.json
    comm-plan profile examples/workload.py:spirals --local-ranks 2 -o profile.json
    comm-plan solve profile.json network.json -o plan.json
    python -m torch.distributed.run --nproc-per-node 2 examples/own_loop.py plan.json
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from workload import classifier, spiral_points

import comm_plan

STEPS = 200
BATCH = 64


def main(plan: str) -> None:
    """Train, and let rank 0 print the loss."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = classifier()
    comm_plan.parallelize(model, plan)  # the one line
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    points, labels = spiral_points()
    order = torch.Generator().manual_seed(dist.get_rank())  # each rank its own samples
    for _ in range(STEPS):
        rows = torch.randint(len(points), (BATCH,), generator=order)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(points[rows]), labels[rows])
        loss.backward()  # gradients travel meanwhile
        optimizer.step()

    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f} after {STEPS} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
