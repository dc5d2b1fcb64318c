"""Whatever one rank was given otherwise is named, with the ranks, on every rank."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from comm_plan.errors import MismatchError
from comm_plan.runtime import agreement
from comm_plan.runtime.agreement import check_device, check_settings, installed
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.learning_rate import LearningRate
from comm_plan.runtime.trainer import Options, running
from comm_plan.tests.runtime.trainings import net, plan_for, workload
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport
from comm_plan.workloads.optimizer import OptimizerOptions, with_optimizer

RANKS = 3


def test_a_model_that_the_ranks_cannot_move_is_refused():
    elsewhere = torch.nn.Linear(2, 2, device="meta")
    with pytest.raises(MismatchError, match="parameter weight is on meta, and the"):
        check_device(elsewhere, LocalTransport())
    check_device(torch.nn.Linear(2, 2), LocalTransport())


def refusals(check):
    """Return what ``check(transport)`` raises on each rank; None: nothing."""

    def program(transport):
        try:
            check(transport)
        except MismatchError as error:
            return str(error)
        return None

    return run_ranks(RANKS, program)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((2, 2, 2), None),
        ((2, 3, 2), "epochs is 3 on rank 1, 2 on rank 0: let all ranks have the same"),
        ((2, 3, 4), "epochs is 3 on ranks 1, 2, 2 on rank 0: let all ranks have the s"),
        ((None, 3, 3), "epochs is 3 on ranks 1, 2, None on rank 0: let all ranks have"),
    ],
)
def test_the_setting_and_the_ranks_are_named_everywhere(values, message):
    def check(transport):
        same = {"steps": 7}
        check_settings({**same, "epochs": values[transport.rank]}, transport)

    for refusal in refusals(check):
        assert refusal == message or refusal.startswith(message)


def test_a_setting_that_others_do_not_know_differs():
    """As with another version of comm-plan."""

    def check(transport):
        known = {"new": 1} if transport.rank == 2 else {}
        check_settings(known, transport)

    assert refusals(check) == [
        "new is 1 on rank 2, absent on rank 0: let all ranks have the same"
    ] * RANKS  # fmt: skip


OTHERWISE = {
    "epochs": 9,
    "steps": 9,
    "seed": 9,
    "checkpoint": Path("there"),
    "checkpoint_every": 9,
    "resume": True,
    "elastic": True,
    "on_nonfinite": "skip",
    "find_unused_parameters": True,
    "density_warmup": (0.5,),
    "learning_rate": LearningRate(warmup_epochs=2.0),
    "micro_batches": 2,
    "agreed": {"option adapt": True},
}
FREE = {"watcher", "on_engine"}


def test_every_option_of_a_training_is_compared_or_free():
    assert {field.name for field in fields(Options)} == OTHERWISE.keys() | FREE


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_rank_trained_with_another_option_is_named(name):
    def check(transport):
        here = {name: OTHERWISE[name]} if transport.rank == 1 else {}
        options = replace(Options(), **here)
        plan = plan_for(net(), RANKS)
        with running(workload(world_size=RANKS), plan, transport, options):
            pytest.fail("it began")

    shown = "option adapt" if name == "agreed" else f"option {name}"
    for refusal in refusals(check):
        assert refusal.startswith(f"{shown} is ")
        assert " on rank 1, " in refusal


def test_folders_of_checkpoints_may_be_called_otherwise_on_other_hosts():
    here, there = (Options(checkpoint=Path(name)).settings() for name in "ab")
    assert here == there != Options().settings()


def test_another_batch_size_on_one_rank_is_named():
    def check(transport):
        size = 4 + (transport.rank == 2)
        training = replace(workload(world_size=RANKS), batch_size=size)
        with running(training, plan_for(net(), RANKS), transport, Options()):
            pytest.fail("it began")

    expected = "batch size is 5 on rank 2, 4 on rank 0: let all ranks have the same"
    assert refusals(check) == [expected] * RANKS


def test_another_optimizer_or_rate_on_one_rank_is_named():
    def check(transport, make):
        here = workload(world_size=RANKS)
        if transport.rank == 1:
            here = replace(here, optimizer=make)
        plan = plan_for(net(), RANKS)
        with running(here, plan, transport, Options()):
            pytest.fail("it began")

    adam = refusals(partial(check, make=torch.optim.Adam))
    assert all(
        refusal.startswith("optimizer is 'Adam' on rank 1, ") for refusal in adam
    )
    slower = refusals(
        partial(check, make=partial(torch.optim.SGD, lr=1e-6, momentum=0.9))
    )
    expected = "lr of the optimizer's group 0 is 1e-06 on rank 1, 0.05 on rank 0: let"
    assert all(refusal.startswith(expected) for refusal in slower)


@pytest.mark.parametrize("name", ["lr", "momentum", "weight_decay", "nesterov"])
def test_another_setting_of_the_optimizer_on_one_rank_is_named(name):
    """As by ``--lr`` and the like, which change the groups of an optimizer."""
    changes = {"lr": 1e-6, "momentum": 0.5, "weight_decay": 0.5, "nesterov": True}

    def check(transport):
        here = workload(world_size=RANKS)
        if transport.rank == 1:
            here = with_optimizer(here, OptimizerOptions(**{name: changes[name]}))
        plan = plan_for(net(), RANKS)
        with running(here, plan, transport, Options()):
            pytest.fail("it began")

    for refusal in refusals(check):
        assert refusal.startswith(f"{name} of the optimizer's group 0 is ")


def test_a_model_on_two_devices_is_refused(monkeypatch):
    devices = {f"layer{i}.weight": torch.device("cuda", i) for i in range(2)}
    parameters = {name: SimpleNamespace(device=d) for name, d in devices.items()}
    monkeypatch.setattr(agreement, "trainable", lambda model: parameters)
    transport = SimpleNamespace(device=torch.device("cuda", 0), backend="nccl")
    with pytest.raises(MismatchError, match="an engine serves one device"):
        check_device(torch.nn.Identity(), transport)


@pytest.mark.parametrize(
    ("name", "other"),
    [("seed", 1), ("on_nonfinite", "stop"), ("find_unused_parameters", True),
     ("broadcast_buffers", False)],
)  # fmt: skip
def test_a_rank_whose_engine_has_another_option_is_named(name, other):
    def check(transport):
        model = net()
        options = {name: other} if transport.rank == 2 else {}
        Engine(model, plan_for(model, RANKS), transport, **options)

    for refusal in refusals(check):
        assert refusal.startswith(f"{name} is {other!r} on rank 2, ")


def test_versions_and_variables_of_backends_are_compared(monkeypatch):
    same = installed()
    assert same["version of torch"] == torch.__version__
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setattr(agreement, "__version__", "0.0")
    other = installed()
    assert {name for name in same if same[name] != other[name]} == {
        "version of comm-plan", "$NCCL_ALGO"
    }  # fmt: skip
    check_settings(other, LocalTransport())
