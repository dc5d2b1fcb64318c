"""A user's workload that kills its own run in the middle when it is told to.

``KILL`` is ``EPOCH.BATCH``: the last rank sends SIGKILL before that batch, to its
process group, so that launcher and ranks end together; with ``KILL_ALONE`` to itself.
"""

import os
import signal

import torch
from torch import nn

RANKS = 2
EPOCH_STEPS = 5
CHECKPOINT_EVERY = 2


def make():
    """Return the parts; the buckets of its plan can use any compressor."""
    layers = [nn.Linear(12, 16), nn.Dropout(0.3), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(16, 8), nn.Linear(8, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, data, nn.CrossEntropyLoss(), optimizer


def data(rank, world_size, epoch, seed):
    """Yield random batches."""
    generator = torch.Generator().manual_seed(100 * epoch + rank)
    for batch in range(EPOCH_STEPS):
        if rank == RANKS - 1 and os.environ.get("KILL") == f"{epoch}.{batch}":
            kill = os.kill if "KILL_ALONE" in os.environ else os.killpg
            kill(os.getpid() if kill is os.kill else 0, signal.SIGKILL)
        inputs = torch.randn(4, 12, generator=generator)
        yield inputs, torch.randint(5, (4,), generator=generator)
