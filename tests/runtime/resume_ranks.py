"""Runs as one rank: kills a training of every method in the middle, resumes, compares.

    python -m comm_plan.tests.support.forked comm_plan.tests.runtime.resume_ranks RANKS

Started by test_resume.py, and by test_cuda.py on a GPU, on several ranks as processes:
dropout draws from torch's global random numbers, which threads would share. Prints, on
rank 0, a JSON object: scenario -> [SHA-256 of the parameters uninterrupted, resumed,
resumed without the engine's state, steps done after resuming].
"""

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from comm_plan.runtime.engine import Engine
from comm_plan.runtime.learning_rate import LearningRate
from comm_plan.runtime.trainer import Options, train
from comm_plan.tests.runtime.trainings import (
    BATCH,
    CLASSES,
    CORRECTED,
    EPOCH_STEPS,
    FEATURES,
    METHODS,
    Killed,
    dying,
    net,
    plan_for,
    workload,
)
from comm_plan.tests.support import forked
from comm_plan.transports.distributed import TorchTransport
from comm_plan.workloads.user import from_parts

STEPS = 2 * EPOCH_STEPS + 3
EVERY = 3
KILLED_AT = (1, 3)  # so the newest checkpoint is in the middle of epoch 1
WARMUP = (0.5, 0.25)
DEVICE = torch.device(os.environ.get(forked.DEVICE, "cpu"))


def with_dropout(mixing=False):
    """Dropout, momentum, and, where samples may mix, running statistics."""
    norm = [nn.BatchNorm1d(16)] if mixing else []
    return workload(net(*norm, nn.Dropout(0.3)))


class Noisy(Dataset):
    """Augments its samples with global random numbers, of each kind."""

    def __len__(self):
        return EPOCH_STEPS * 2 * BATCH

    def __getitem__(self, index):
        return torch.full((FEATURES,), index / 10) + torch.randn(()), index % CLASSES


def with_loader():
    """A user's parts: the loader draws a seed when an epoch begins, then noise."""
    loader = DataLoader(Noisy(), batch_size=BATCH)
    return from_parts("noisy", (net(nn.Dropout(0.3)), loader, nn.CrossEntropyLoss()))


def adam():
    return replace(with_dropout(), optimizer=torch.optim.Adam)


def scenarios():
    for name, method in METHODS.items():
        mixing = method[0].kind not in ("vgc", "hybrid")
        how = *method, name in CORRECTED
        yield name, how, lambda mixing=mixing: with_dropout(mixing)
    yield "random data", (*METHODS["topk"], False), with_loader
    yield "adam", (*METHODS["terngrad by allgather"], False), adam


def run(make, method, options, world_size):
    training = make()
    *how, corrected = method
    plan = plan_for(training.model, world_size, *how)
    plan = plan.model_copy(update={"momentum_correction": corrected})
    return train(training, plan, TorchTransport(device=DEVICE), options)


def outcome(make, method, folder):
    """Return what the module's docstring says of one scenario."""
    size = dist.get_world_size()
    schedule = LearningRate.parse("cosine", warmup_epochs=len(WARMUP))
    options = Options(
        steps=STEPS, seed=7, density_warmup=WARMUP, learning_rate=schedule
    )
    whole = run(make, method, options, size)
    saving = replace(options, checkpoint=folder / "a", checkpoint_every=EVERY)
    try:
        run(lambda: dying(make(), *KILLED_AT), method, saving, size)
    except Killed:
        resumed = run(make, method, replace(saving, resume=True), size)
    saving = replace(saving, checkpoint=folder / "b")
    try:
        run(lambda: dying(make(), *KILLED_AT), method, saving, size)
    except Killed:
        with patch.object(Engine, "load_state_dict"):
            forgetful = run(make, method, replace(saving, resume=True), size)
    runs = (whole, resumed, forgetful)
    return [*(r.parameters_sha256 for r in runs), len(resumed.iterations_s)]


def main():
    torch.set_num_threads(1)
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("gloo")
    everything = {}
    with tempfile.TemporaryDirectory() as own:
        shared = [own]
        dist.broadcast_object_list(shared)
        for name, method, make in scenarios():
            folder = Path(shared[0]) / name
            everything[name] = outcome(make, method, folder)
        dist.barrier()
    if dist.get_rank() == 0:
        json.dump(everything, sys.stdout)
    dist.destroy_process_group()
