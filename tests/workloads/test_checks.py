"""What the functions of a workload promise is checked when they run."""

import itertools
import re
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

from comm_plan.errors import LONGEST_LINE, WorkloadError
from comm_plan.plans import Model, Vgc
from comm_plan.profiler import profile_from_speed
from comm_plan.runtime.side_by_side import train_side_by_side
from comm_plan.runtime.trainer import Options, train
from comm_plan.tests.runtime.trainings import plan_for
from comm_plan.tests.support.harness import run_ranks
from comm_plan.workloads import base, load
from comm_plan.workloads.base import Workload, endless
from comm_plan.workloads.checks import checked

BATCH = torch.ones(2, 1), torch.ones(2, 1)


def mean_square(model, batch):
    inputs, targets = batch
    return (model(inputs) - targets).square().mean()


def own(**changes):
    """Return a right workload, but for ``changes``, as it is loaded."""
    right = Workload(
        name="own",
        model=nn.Linear(1, 1),
        optimizer=torch.optim.SGD,
        batch_size=2,
        batches=lambda rank, world_size, epoch, seed: iter([BATCH]),
        loss=mean_square,
    )
    return checked(replace(right, **changes))


def says(message):
    return pytest.raises(WorkloadError, match=re.escape(message))


def test_a_loaded_workload_is_checked(tmp_path):
    file = tmp_path / "closed.py"
    file.write_text(
        "import torch\n"
        "def make():\n"
        "    m = torch.nn.Linear(1, 1)\n"
        "    data = [(torch.ones(2, 1), torch.ones(2, 1))]\n"
        "    return m, data, torch.nn.MSELoss(), lambda _: torch.optim.SGD([m.bias])\n"
    )
    workload = load(f"{file}:make")
    with says("use the parameters that are handed in"):
        workload.optimizer(deepcopy(workload.model).parameters())


@pytest.mark.parametrize(
    ("name", "held"),
    [("two\nlines", "two lines"), ("no text \udcff", r"no text \udcff")],
)
def test_a_name_is_one_that_documents_can_hold(name, held):
    assert Model(name=own(name=name).name, fingerprint="x", parameters=1).name == held
    assert len(own(name=1000 * "long").name) <= LONGEST_LINE


def test_side_by_side_never_trains_the_model_that_a_function_closed_over():
    model = nn.Linear(1, 1)
    training = own(model=model, optimizer=lambda _: torch.optim.SGD([model.weight]))

    def rank(transport):
        plan = plan_for(model, 1)
        return train_side_by_side(training, [plan], transport, Options())

    with says("use the parameters that are handed in"):
        run_ranks(1, rank)


@pytest.mark.parametrize(
    ("needs_a_copy", "instead"),
    [
        (
            lambda training, plan, ranks: train_side_by_side(
                training, [plan], ranks, Options()
            ),
            "train the plans one by one",
        ),
        (
            lambda training, plan, ranks: train(training, plan, ranks, Options()),
            "say --second-moments exact or micro-batches:N",
        ),
        (
            lambda training, plan, ranks: profile_from_speed(training, 1e9),
            "measure it instead",
        ),
    ],
    ids=["compare", "train", "profile --from-model"],
)
def test_a_model_that_cannot_be_copied_is_refused_with_what_to_do(
    needs_a_copy, instead
):
    """As one with the weight_norm of old, or the state of its last forward."""
    model = nn.Linear(1, 1)
    plan = plan_for(model, 1, Vgc(), "allgather")
    model.last = model(torch.ones(1, 1))

    def rank(transport):
        needs_a_copy(own(model=model), plan, transport)

    with pytest.raises(WorkloadError) as caught:
        run_ranks(1, rank)
    assert str(caught.value).startswith("the model cannot be copied (RuntimeError: ")
    assert str(caught.value).endswith(f"): {instead}")


def test_an_optimizer_of_some_of_the_parameters_is_fine():
    workload = own(optimizer=lambda own: torch.optim.Adam(list(own)[:1]))
    made = workload.optimizer(workload.model.parameters())
    assert made.param_groups[0]["params"][0] is workload.model.weight


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda parameters: None, "returned NoneType 'None'"),
        (lambda p: (torch.optim.SGD(p), "schedule"), "returned a tuple of 2"),
        (torch.optim.LBFGS, "the step of its LBFGS needs a closure"),
    ],
    ids=["nothing", "two", "closure"],
)
def test_what_is_no_usable_optimizer_is_refused(make, message):
    workload = own(optimizer=make)
    with says(message):
        workload.optimizer(workload.model.parameters())


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, batch: mean_square(model, batch).item(), "without .item()"),
        (lambda model, batch: model(batch[0]), "has shape [2, 1]"),
        (lambda model, batch: mean_square(model, batch).detach(), "without detach()"),
    ],
    ids=["float", "of each sample", "detached"],
)
def test_a_loss_that_backward_cannot_take_is_refused(loss, message):
    workload = own(loss=loss)
    with says(message):
        workload.loss(workload.model, BATCH)


def test_a_loss_needs_no_gradient_where_none_are_made():
    workload = own()
    with torch.no_grad():
        assert workload.loss(workload.model, BATCH) >= 0


@pytest.mark.parametrize(
    "result",
    [0.5, {"accuracy": 0.5}, (0.5, "accuracy"), ("accuracy", torch.zeros(2)), ("a",)],
)
def test_an_evaluation_that_is_no_name_and_number_is_refused(result):
    with says("return a name and a number"):
        own(evaluate=lambda model: result).evaluate(nn.Linear(1, 1))


@pytest.mark.parametrize("value", [0.5, torch.tensor(0.5)])
def test_a_metric_may_be_a_tensor(value):
    evaluate = own(evaluate=lambda model: ("accuracy", value)).evaluate
    assert evaluate(nn.Linear(1, 1)) == ("accuracy", 0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batches": lambda: iter([BATCH])}, "its data function is called with"),
        ({"optimizer": lambda: None}, "its optimizer function is called with"),
        ({"loss": lambda batch: 0}, "its loss function is called with (model, batch)"),
        ({"evaluate": lambda: 0}, "its evaluate function is called with (model)"),
    ],
    ids=["data", "optimizer", "loss", "evaluate"],
)
def test_a_function_of_other_arguments_is_refused_at_once(changes, message):
    with says(message):
        own(**changes)


def one_epoch_only():
    left = iter([BATCH] * 3)
    return lambda rank, world_size, epoch, seed: left


def test_steps_end_where_an_epoch_has_no_batch():
    def rank(transport):
        training = own(batches=one_epoch_only())
        plan = plan_for(training.model, 1)
        return train(training, plan, transport, Options(steps=100))

    with says("epoch 1 has no batch for rank 0 of 1"):
        run_ranks(1, rank)


def test_endless_batches_end_where_an_epoch_has_no_batch():
    batches = endless(one_epoch_only(), 0, 1)
    assert len(list(itertools.islice(batches, 3))) == 3
    with says("must begin anew in each epoch"):
        next(batches)


def test_the_steps_of_an_epoch_are_counted_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(base, "LONGEST_EPOCH", 3)

    def steps(number):
        batches = itertools.repeat(BATCH, number)
        return own(batches=lambda *of_epoch: batches).steps_of_epoch(1)

    assert steps(3) == 3
    for number in (4, 10**9):
        with says("does not end within 3 batches"):
            steps(number)


def test_ranks_without_a_batch_are_refused_where_a_schedule_counts_steps():
    with says("gives 9 ranks no batch each"):
        own(epoch_steps=lambda world_size: 8 // world_size).steps_of_epoch(9)
