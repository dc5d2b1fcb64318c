"""A user's own program, of which one rank goes wrong. Runs as one rank.

    python users_loop.py BACKEND FATE PLACE

BACKEND: ``gloo`` or ``mpi``.
FATE of the last rank: ``killed``, ``stopped``, ``raises``, ``leaves``, or ``none``.
PLACE of the others: ``backward``, ``code`` of their own, ``collective`` of their own.
"""

import os
import signal
import sys
import time
import weakref

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # later it would keep the process group
from torch import nn

import comm_plan
from comm_plan.tests.runtime.trainings import plan_for
from comm_plan.transports import ranks

STEPS = 10
HALFWAY = 4


def meet(fate):
    """Let the last rank meet its fate."""
    if fate == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fate == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fate == "raises":
        raise ValueError("my data is broken")
    if fate == "leaves":
        sys.exit()


def meet_the_others(backend):
    """Wait in a collective of the program's own."""
    if backend == "gloo":
        dist.all_reduce(torch.ones(1))
    else:
        from mpi4py import MPI

        MPI.COMM_WORLD.Barrier()


def main():
    backend, fate, place = sys.argv[1:]
    torch.set_num_threads(1)
    if backend == "gloo":
        dist.init_process_group("gloo")
    here = ranks.place()
    rank, size = here.rank, here.world_size
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    plan = plan_for(model, size).model_copy(update={"backend": backend})
    comm_plan.parallelize(model, plan)
    for step in range(STEPS):
        if step == HALFWAY:
            if rank == size - 1:
                meet(fate)
            elif place == "code":
                time.sleep(3600 if fate != "none" else 0)
            elif place == "collective":
                meet_the_others(backend)
        model.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        with torch.no_grad():  # PyTorch's optimizers import its compiler: seconds
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    meet_the_others(backend)
    if backend == "gloo":
        group = weakref.ref(dist.group.WORLD)
        dist.destroy_process_group()
        assert group() is None, "gloo's threads may abort a process that ends now"


if __name__ == "__main__":
    main()
