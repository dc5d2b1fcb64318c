"""Options change an optimizer's settings, or the optimizer."""

from functools import partial

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from comm_plan.errors import InputError
from comm_plan.tests.runtime.trainings import net, workload
from comm_plan.workloads.optimizer import (
    OPTIMIZERS,
    OptimizerOptions,
    with_optimizer,
)


def made(workload, **options):
    changed = with_optimizer(workload, OptimizerOptions(**options))
    return changed.optimizer(changed.model.parameters())


def test_settings_change_in_every_group_and_others_stay():
    def groups(parameters):
        first, *others = parameters
        return torch.optim.SGD(
            [{"params": [first], "weight_decay": 0.1}, {"params": others}],
            lr=0.5, momentum=0.9,
        )  # fmt: skip

    optimizer = made(workload(optimizer=groups), lr=0.2, nesterov=True)
    for group, decay in zip(optimizer.param_groups, (0.1, 0.0), strict=True):
        assert group["lr"] == 0.2
        assert group["nesterov"] is True
        assert (group["momentum"], group["weight_decay"]) == (0.9, decay)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_another_optimizer_steps_as_pytorchs_own(name):
    def stepped(make):
        model = net()
        optimizer = make(model.parameters())
        for _ in range(3):
            model(torch.ones(2, 12)).sum().backward()
            optimizer.step()
        return list(model.parameters())

    options = OptimizerOptions(optimizer=name, lr=0.1, weight_decay=0.01)
    ours = with_optimizer(workload(), options).optimizer
    theirs = getattr(torch.optim, OPTIMIZERS[name])
    expected = stepped(lambda p: theirs(p, lr=0.1, weight_decay=0.01))
    assert all(map(torch.equal, stepped(ours), expected))


def test_a_long_gradient_is_scaled_down_and_a_short_one_left_alone():
    def step_length(clip_norm):
        model = net()
        options = OptimizerOptions("sgd", lr=1.0, clip_norm=clip_norm)
        make = with_optimizer(workload(), options).optimizer
        optimizer = make(model.parameters())
        before = parameters_to_vector(model.parameters()).detach().clone()
        model(torch.ones(2, 12)).sum().backward()
        optimizer.step()
        return (parameters_to_vector(model.parameters()) - before).norm().item()

    whole = step_length(None)
    assert step_length(whole / 2) == pytest.approx(whole / 2, rel=1e-4)
    assert step_length(whole * 2) == pytest.approx(whole)


def test_no_options_leave_the_workload_alone():
    training = workload()
    assert with_optimizer(training, OptimizerOptions()) is training


def test_settings_that_the_optimizer_does_not_have_are_refused():
    with pytest.raises(InputError, match="--momentum: AdamW has none: leave it out"):
        made(workload(), optimizer="adamw", momentum=0.9)
    with pytest.raises(InputError, match="--nesterov needs momentum"):
        made(workload(), momentum=0.0, nesterov=True)
    damped = partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5)
    with pytest.raises(InputError, match="--nesterov: the workload's SGD has dampenin"):
        made(workload(optimizer=damped), nesterov=True)
