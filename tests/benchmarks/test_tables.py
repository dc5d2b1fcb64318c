"""What the benchmarks' tables say follows from plans, engines and collectives."""

from __future__ import annotations

import pytest
import torch

from comm_plan.benchmarks import tables
from comm_plan.benchmarks.aggregations_on_hosts import total_nbytes
from comm_plan.collectives import gtopk
from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.plans import (
    Bucket,
    Dense,
    Device,
    Fp16,
    Model,
    Plan,
    PlannedModel,
    Profile,
    Qsgd,
    TensorTiming,
    TernGrad,
    TopK,
    fingerprint,
)
from comm_plan.runtime.engine import Engine
from comm_plan.transports.local import LocalTransport

NUMELS = (7, 1000, 33)
SPECS = [
    (Dense(), "allreduce"),
    (Fp16(), "allreduce"),
    (TernGrad(), "allgather"),
    (TernGrad(), "allreduce"),
    (Qsgd(), "allgather"),
    (TopK(density=0.01), "allgather"),
    (TopK(density=(0.5, 0.001, 1.0)), "gtopk"),
]


def profile():
    names = [f"layer{i}.weight" for i in range(len(NUMELS))]
    shapes = [(name, (n,), "float32") for name, n in zip(names, NUMELS, strict=True)]
    return Profile(
        model=Model(
            name="three", fingerprint=fingerprint(shapes), parameters=sum(NUMELS)
        ),
        device=Device(type="cpu", name="none"),
        batch_size=1,
        forward_s=0.0,
        backward_s=0.0,
        update_s=0.0,
        tensors=tuple(
            TensorTiming(
                name=name,
                layer=name.split(".")[0],
                shape=shape,
                numel=shape[0],
                dtype=dtype,
                ready_s=0.0,
            )
            for name, shape, dtype in shapes
        ),
    )


def plan(spec, collective):
    bucket = Bucket(
        tensors=tuple(tensor.name for tensor in profile().tensors),
        compressor=spec,
        collective=collective,
    )
    return Plan(
        solver="none",
        model=PlannedModel(name="three", fingerprint=profile().model.fingerprint),
        world_size=1,
        backend="local",
        buckets=(bucket,),
    )


@pytest.mark.parametrize(("spec", "collective"), SPECS)
def test_message_bytes_are_those_that_an_engine_hands_over(spec, collective):
    layers = torch.nn.ModuleDict(
        {f"layer{i}": torch.nn.Linear(n, 1, bias=False) for i, n in enumerate(NUMELS)}
    )
    for layer in layers.values():
        layer.weight = torch.nn.Parameter(layer.weight.detach().flatten())
    planned = plan(spec, collective)
    engine = Engine(layers, planned, LocalTransport())
    sum(layer.weight.sum() for layer in layers.values()).backward()
    sent = sum(bucket.sent_nbytes for bucket in engine.buckets)
    engine.close()
    assert tables.message_nbytes(planned, profile()) == sent


@pytest.mark.parametrize("world_size", [2, 3, 4, 7, 16])
def test_hosts_send_what_the_closed_forms_say_each_rank_sends(world_size):
    message = 1000
    ring = COLLECTIVES["allreduce"].terms(world_size).volume * message
    assert total_nbytes("dense", message, world_size) == round(world_size * ring)
    gather = COLLECTIVES["allgather"].terms(world_size).volume * message * world_size
    assert total_nbytes("topk", message, world_size) == round(world_size * gather)
    up = sum(len(pairs) for pairs in gtopk.rounds(world_size))
    down = world_size - 1
    assert total_nbytes("gtopk", message, world_size) == (up + down) * message


def line(name, predicted_s, measured_s):
    return tables.Line(name, 1, predicted_s, measured_s, measured_s, 4)


def test_a_prediction_that_is_too_high_has_a_positive_error():
    assert line("plan", 1.1, 1.0).error == pytest.approx(0.1)
    assert line("ddp", None, 1.0).error is None


def test_the_worst_error_is_the_largest_in_magnitude():
    rows = [line("a", 1.01, 1.0), line("b", 0.8, 1.0), line("ddp", None, 1.0)]
    assert "worst -20.0% (b)" in tables.error_sentence(rows)


def test_a_missing_cell_is_a_dash():
    text = tables.markdown(["variant", "buckets"], [["ddp", None]])
    assert text.splitlines() == ["| variant | buckets |", "|---|---:|", "| ddp | - |"]
