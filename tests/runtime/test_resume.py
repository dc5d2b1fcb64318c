"""A run that is killed and resumed gives bitwise what an uninterrupted one gives."""

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from comm_plan.plans import (
    Bucket,
    PartitionTopK,
    RunRecord,
    SparDL,
    TernGrad,
    TopK,
    Vgc,
)
from comm_plan.plans.compression import KINDS
from comm_plan.runtime.trainer import Options, train
from comm_plan.tests.runtime.mortal import CHECKPOINT_EVERY, EPOCH_STEPS, RANKS
from comm_plan.tests.runtime.trainings import METHODS, net, plan_for, workload
from comm_plan.tests.support import forked
from comm_plan.tests.support.harness import mpirun, run_ranks
from comm_plan.transports.local import LocalTransport
from comm_plan.workloads import load

HERE = Path(__file__).parent
WORKLOAD = f"{HERE / 'mortal.py'}:make"
STATELESS = ("dense", "fp16", "bf16")


@cache
def outcomes():
    run = forked.run("comm_plan.tests.runtime.resume_ranks", RANKS)
    return json.loads(run.stdout)


def test_every_method_is_covered():
    covered = {(spec.kind, collective) for spec, collective in METHODS.values()}
    assert covered == {(k, c) for k, s in KINDS.items() for c in s.collectives()}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [*METHODS, "random data", "adam"])
def test_resuming_gives_bitwise_the_uninterrupted_parameters(scenario):
    """Killed within an epoch: with dropout, momentum, warm-up and decay of the rate."""
    uninterrupted, resumed, forgetful, steps_after = outcomes()[scenario]
    assert resumed == uninterrupted
    assert steps_after == 7, "nothing was skipped"
    assert (forgetful == uninterrupted) == (scenario in STATELESS)


def write_plan(folder, name="plan.json"):
    """Write a plan whose buckets are dense, gTop-k, TernGrad and VGC."""
    model = load(WORKLOAD).model
    compressed = {
        "4.bias": (TopK(density=0.2), "gtopk"),
        "3.weight": (TernGrad(), "allgather"),
        "0.weight": (Vgc(), "allgather"),
    }
    plan = plan_for(model, RANKS, per_bucket=1)
    buckets = []
    for bucket in plan.buckets:
        if bucket.tensors[0] in compressed:
            spec, collective = compressed[bucket.tensors[0]]
            bucket = Bucket(
                tensors=bucket.tensors, compressor=spec, collective=collective
            )
        buckets.append(bucket)
    changes = {"buckets": tuple(buckets), "momentum_correction": True}
    plan = plan.model_copy(update=changes)
    plan.save(folder / name)
    return plan


def training(record):
    """Return the words of a training, to be recorded in ``record``."""
    lasts = ("--epochs", "3", "--steps", "12")
    return ("train", WORKLOAD, "--plan", "plan.json", "-o", record, *lasts)


def start(folder, record, *arguments, ranks=RANKS, **environment):
    return subprocess.run(
        [sys.executable, "-m", "comm_plan.cli", *training(record),
         "--local-ranks", str(ranks), *map(str, arguments)],
        cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True, text=True, timeout=250, check=False,
        preexec_fn=os.setpgrp,  # the workload kills its process group
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with the plan and the record of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    write_plan(folder)
    forked.run("comm_plan.cli", RANKS, *training("whole.json"), cwd=folder)
    return folder


SAVE = ("--checkpoint-every", CHECKPOINT_EVERY, "--checkpoint")
ENGINES = [
    pytest.param((), {}, id="gloo"),
    pytest.param(
        ("--backend", "mpi"),
        {"KILL_ALONE": "1"},  # mpirun's children are not in its process group
        id="mpi",
        marks=[
            pytest.mark.mpi,
            pytest.mark.skipif(mpirun() is None, reason="mpirun is not here"),
        ],
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "environment"), ENGINES)
def test_a_run_killed_for_real_resumes_through_the_command(whole, backend, environment):
    """Two ranks sum two numbers, so both engines give the same bits."""
    folder = f"checkpoints-{len(backend)}"
    save = (*backend, *SAVE, folder)
    killed = start(whole, "run.json", *save, KILL="1.3", **environment)
    assert killed.returncode != 0
    if not backend:
        assert killed.returncode == -signal.SIGKILL
    assert not (whole / "run.json").exists()
    assert (whole / folder / f"step-{EPOCH_STEPS + 3:08d}").exists()
    resumed = start(whole, "run.json", *save, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    record = RunRecord.load(whole / "run.json")
    (whole / "run.json").unlink()
    uninterrupted = RunRecord.load(whole / "whole.json")
    assert record.parameters_sha256 == uninterrupted.parameters_sha256
    assert record.steps == uninterrupted.steps == 12
    assert len(record.iterations_s) == 12 - (EPOCH_STEPS + 3)


def one_line(run):
    assert run.returncode == 2, run.stderr
    (line,) = [text for text in run.stderr.splitlines() if text.strip()]
    return line


@pytest.mark.slow
def test_what_cannot_be_resumed_is_refused_in_one_line(tmp_path):
    plan = write_plan(tmp_path)
    plan.model_copy(update={"world_size": 1}).save(tmp_path / "plan.json")
    run = start(tmp_path, "run.json", *SAVE, "empty", "--resume", ranks=1)
    assert "empty: no checkpoint to resume from" in one_line(run)
    assert not (tmp_path / "run.json").exists()


def test_a_resumed_run_need_not_be_the_last(tmp_path):
    """Killed twice, also right after an epoch's last step."""

    def run(steps, **options):
        options = Options(steps=steps, checkpoint=tmp_path / "c", **options)
        return train(workload(world_size=1), plan, LocalTransport(), options)

    plan = plan_for(net(), 1, TopK(density=0.1), "allgather")
    run(3)
    run(EPOCH_STEPS, resume=True)
    resumed = run(2 * EPOCH_STEPS + 1, resume=True)
    shutil.rmtree(tmp_path / "c")
    whole = run(2 * EPOCH_STEPS + 1)
    assert resumed.parameters_sha256 == whole.parameters_sha256
    assert len(resumed.iterations_s) == EPOCH_STEPS + 1


@pytest.mark.parametrize(
    ("spec", "collective"),
    [
        (None, "allreduce"),
        (TopK(density=1.0), "gtopk"),
        (SparDL(density=1.0), "spardl"),
        (PartitionTopK(density=1.0), "allreduce"),
    ],
    ids=["dense", "gtopk of everything", "spardl of everything", "partition topk"],
)
def test_a_resume_under_another_plan_loses_no_residual(tmp_path, spec, collective):
    """The gradients do not depend on the parameters; the last step sends all."""

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=1.0)

    def linear_loss(model, batch):
        inputs, labels = batch
        vectors = [p.flatten() for p in model.parameters()]
        weights = (inputs.sum() + labels.sum()).sin() * 0.01
        return sum((v * weights * (1 + i)).sum() for i, v in enumerate(vectors))

    def rank(transport):
        def run(folder, *plans):
            for number, plan in enumerate(plans):
                training = workload(loss=linear_loss, optimizer=sgd)
                options = Options(
                    steps=4 if plan is not plans[-1] else 5,
                    checkpoint=tmp_path / folder,
                    resume=number > 0,
                )
                train(training, plan, transport, options)
            return [p.detach().clone() for p in training.model.parameters()]

        dense = plan_for(net(), 2)
        first = plan_for(net(), 2, TopK(density=0.1), "allgather")
        last = plan_for(net(), 2, spec, collective, per_bucket=4)
        return run("dense", dense), run("changed", first, last), run("same", first)

    for dense, changed, same in run_ranks(2, rank):
        torch.testing.assert_close(changed, dense, rtol=1e-5, atol=1e-6)
        assert not all(map(torch.allclose, same, dense)), "nothing was held back"
