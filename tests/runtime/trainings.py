"""Small trainings for tests: a tiny model, its data, and plans of every method."""

from dataclasses import replace

import torch
from torch import nn

from comm_plan.plans import (
    Bf16,
    Bucket,
    Dense,
    DoubleSqueeze,
    Fp16,
    Hybrid,
    ModelTopK,
    PartitionTopK,
    Plan,
    PlannedModel,
    PowerSgd,
    Qsgd,
    SparDL,
    Strom,
    TernGrad,
    TopK,
    Vgc,
)
from comm_plan.plans.parameters import model_fingerprint, trainable
from comm_plan.runtime.trainer import Options, train
from comm_plan.workloads.base import Workload
from comm_plan.workloads.data import cross_entropy, shards

METHODS = {
    "dense": (Dense(), "allreduce"),
    "fp16": (Fp16(), "allreduce"),
    "bf16": (Bf16(), "allreduce"),
    "terngrad by allgather": (TernGrad(), "allgather"),
    "terngrad by allreduce": (TernGrad(), "allreduce"),
    "topk": (TopK(density=0.1), "allgather"),
    "gtopk": (TopK(density=0.1), "gtopk"),
    "gtopk with momentum correction": (
        TopK(density=0.1, clip_norm=1.0),
        "gtopk",
    ),
    "model topk": (ModelTopK(density=0.1), "allgather"),
    "model gtopk": (ModelTopK(density=0.1), "gtopk"),
    "partition topk": (PartitionTopK(density=0.1), "allreduce"),
    "spardl": (SparDL(density=0.1), "spardl"),
    "vgc": (Vgc(), "allgather"),
    "strom": (Strom(tau=0.02), "allgather"),
    "hybrid": (Hybrid(tau=0.02), "allgather"),
    "qsgd 2": (Qsgd(bits=2), "allgather"),
    "qsgd 4": (Qsgd(bits=4), "allgather"),
    "doublesqueeze": (DoubleSqueeze(bits=4, group_numel=32), "two_pass"),
    "powersgd": (PowerSgd(rank=1), "allreduce"),
}
CORRECTED = {"gtopk with momentum correction", "model gtopk", "strom"}
"""Those of the methods that are tried with momentum correction."""

FEATURES, CLASSES, BATCH = 12, 5, 4
EPOCH_STEPS = 5


def net(*layers):
    """A model with the same parameters on every thread, whatever others draw."""
    model = nn.Sequential(
        nn.Linear(FEATURES, 16), *layers, nn.ReLU(), nn.Linear(16, CLASSES)
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return model


class Failing(torch.autograd.Function):
    """The identity, whose backward raises."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise MemoryError("no room")


def workload(model=None, world_size=2, **changes):
    """A workload of ``EPOCH_STEPS`` steps an epoch for ``world_size`` ranks."""
    generator = torch.Generator().manual_seed(1)
    samples = EPOCH_STEPS * world_size * BATCH + 1
    inputs = torch.randn(samples, FEATURES, generator=generator)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    made = Workload(
        name="tiny",
        model=model or net(),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        batch_size=BATCH,
        batches=shards(inputs, labels, batch_size=BATCH),
        loss=cross_entropy,
        epochs=2,
    )
    return replace(made, **changes)


def plan_for(model, world_size, spec=None, collective="allreduce", per_bucket=2):
    """A plan of buckets of ``per_bucket`` tensors, all of one method."""
    names = tuple(trainable(model))[::-1]
    starts = range(0, len(names), per_bucket)
    groups = [names[start : start + per_bucket] for start in starts]
    spec = spec or Dense()
    return Plan(
        solver="hand",
        model=PlannedModel(name="tiny", fingerprint=model_fingerprint(model)),
        world_size=world_size,
        backend="gloo",
        buckets=tuple(
            Bucket(tensors=group, compressor=spec, collective=collective)
            for group in groups
        ),
    )


def trained(transport, method, steps):
    """Return this rank's parameters, on the CPU, and losses after some steps."""
    training = workload(world_size=transport.world_size)
    plan = plan_for(training.model, transport.world_size, *METHODS[method])
    record = train(training, plan, transport, Options(steps=steps))
    parameters = training.model.state_dict()
    return {name: p.cpu() for name, p in parameters.items()}, record.losses


class Killed(Exception):
    """The end of a run in the middle."""


def dying(workload, epoch, batch):
    """The same workload; its data kills the run before ``batch`` of ``epoch``."""

    def batches(rank, world_size, current, seed):
        data = workload.batches(rank, world_size, current, seed)
        for number, one in enumerate(data):
            if (current, number) == (epoch, batch):
                raise Killed
            yield one

    return replace(workload, batches=batches)
