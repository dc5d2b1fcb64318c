"""Learning rates follow PyTorch's schedulers, and the data rather than the steps."""

from itertools import chain

import pytest
import torch
from torch.optim import lr_scheduler

from comm_plan.errors import InputError
from comm_plan.runtime.learning_rate import DECAYS, LearningRate
from comm_plan.runtime.trainer import Options, train
from comm_plan.tests.runtime.trainings import EPOCH_STEPS, net, plan_for, workload
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport

EPOCHS = 12
ORACLES = {
    "constant": lambda sgd: lr_scheduler.ConstantLR(sgd, factor=1.0),
    "step:4,9": lambda sgd: lr_scheduler.MultiStepLR(sgd, [4, 9]),
    "step:5:0.3": lambda sgd: lr_scheduler.MultiStepLR(sgd, [5], gamma=0.3),
    "every:3": lambda sgd: lr_scheduler.StepLR(sgd, 3, gamma=0.5),
    "cosine": lambda sgd: lr_scheduler.CosineAnnealingLR(sgd, EPOCHS),
    "poly": lambda sgd: lr_scheduler.PolynomialLR(sgd, EPOCHS, power=0.5),
    "poly:2": lambda sgd: lr_scheduler.PolynomialLR(sgd, EPOCHS, power=2.0),
}


def test_every_decay_has_an_oracle():
    assert {decay.split(":")[0] for decay in ORACLES} == set(DECAYS)


@pytest.mark.parametrize("decay", ORACLES)
def test_decays_are_those_of_pytorchs_schedulers(decay):
    sgd = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    oracle = ORACLES[decay](sgd)
    schedule = LearningRate.parse(decay)
    for epoch in range(EPOCHS):
        expected = sgd.param_groups[0]["lr"]
        assert schedule.factor(epoch, EPOCHS, 0.1) == pytest.approx(expected)
        sgd.step()
        oracle.step()


@pytest.mark.parametrize(
    "text", ["linear", "step", "step:a", "step:-1", "every:0", "cosine:3", "poly:inf"]
)
def test_what_is_no_schedule_is_refused(text):
    with pytest.raises(InputError, match=f"--lr-schedule '{text}': write constant, "):
        LearningRate.parse(text)


def rates(options, world_size=1, transport=None, **changes):
    """Return the rates of both parameter groups at each step."""
    transport = transport or LocalTransport()
    made, seen = [], []

    def optimizer(parameters):
        first, *others = parameters
        groups = [{"params": [first], "lr": 0.1}, {"params": others}]
        made.append(torch.optim.SGD(groups, lr=0.5))
        return made[0]

    training = workload(net(), world_size, optimizer=optimizer, **changes)
    plan = plan_for(training.model, transport.world_size)
    options = Options(
        **options,
        watcher=lambda event, engine: seen.append(
            [group["lr"] for group in made[0].param_groups]
        ),
    )
    train(training, plan, transport, options)
    return seen


def test_the_rate_rises_linearly_in_the_first_epochs_then_falls_in_steps():
    schedule = LearningRate.parse("step:3:0.5", warmup_epochs=2)
    seen = rates({"epochs": 4, "learning_rate": schedule})
    rising = [(step + 1) / (2 * EPOCH_STEPS) for step in range(2 * EPOCH_STEPS)]
    factors = [*rising, *[1.0] * EPOCH_STEPS, *[0.5] * EPOCH_STEPS]
    for (first, second), factor in zip(seen, factors, strict=True):
        assert first == pytest.approx(0.1 * factor)
        assert second == pytest.approx(0.5 * factor)


@pytest.mark.parametrize("length", [{"steps": 8}, {"epochs": 9, "steps": 8}])
def test_a_run_of_so_many_steps_ends_its_decay_with_the_last(length):
    seen = rates({**length, "learning_rate": LearningRate.parse("poly:1")})
    left = [0.5 * (8 - step) / 8 for step in range(8)]
    assert [second for _, second in seen] == pytest.approx(left)


def test_the_place_in_the_data_decides_not_the_number_of_the_step():
    """Twice as many steps an epoch, as on half as many ranks: the same rates."""
    options = {"epochs": 3, "learning_rate": LearningRate.parse("cosine")}
    few, many = rates(options), rates(options, world_size=2)
    assert len(many) == 2 * len(few)
    assert list(chain(*many[::2])) == pytest.approx(list(chain(*few)))


def test_a_run_that_goes_on_with_fewer_ranks_ends_its_decay_with_its_last_step(
    tmp_path,
):
    """Their epochs have more steps: so many steps would long have been over by then."""
    decay = LearningRate.parse("poly:1")
    options = {"checkpoint": tmp_path, "learning_rate": decay}
    begun = {**options, "steps": 2 * EPOCH_STEPS + 2}
    run_ranks(2, lambda ranks: rates(begun, 2, ranks))
    seen = rates({**options, "steps": 4 * EPOCH_STEPS, "resume": True}, 2)
    passed, left = 2 * begun["steps"], 2 * EPOCH_STEPS - 2
    expected = [0.5 * (left - step) / (passed + left) for step in range(left)]
    assert [second for _, second in seen] == pytest.approx(expected)


@pytest.mark.parametrize("decay", ["step:0.2", "every:0.2"])
def test_a_decay_within_an_epoch_comes_at_the_very_step(decay):
    """Though 7 * (1 / 35) is less than 0.2, and 0.6 // 0.2 is 2."""
    options = {"epochs": 1, "learning_rate": LearningRate.parse(f"{decay}:0.5")}
    seen = [second for _, second in rates(options, world_size=7)]
    changes = [step for step in range(1, 35) if seen[step] != seen[step - 1]]
    assert changes == ([7] if decay == "step:0.2" else [7, 14, 21, 28])


def test_a_workload_that_knows_its_steps_is_not_asked_to_count_them():
    options = {"epochs": 1, "learning_rate": LearningRate.parse("poly:1")}
    seen = rates(options, epoch_steps=lambda world_size: 2 * EPOCH_STEPS)
    assert seen[-1][1] == pytest.approx(0.5 * (1 - (EPOCH_STEPS - 1) / 10))
