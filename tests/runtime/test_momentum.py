"""Momentum correction: the step of SGD, on whichever side of the compression."""

from __future__ import annotations

import itertools
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn

from comm_plan import parallelize
from comm_plan.errors import InputError, RunError
from comm_plan.plans import Hybrid, ModelTopK, PowerSgd, Strom, TopK, Vgc
from comm_plan.runtime.momentum import (
    ChangeOfSides,
    TakenMomentum,
    can_be_corrected,
)
from comm_plan.tests.runtime.test_swap import replan
from comm_plan.tests.runtime.trainings import FEATURES, net, plan_for
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport

RANKS = 3
STEPS = 6
SGD = {
    "plain": {"momentum": 0.9},
    "Nesterov": {"momentum": 0.9, "nesterov": True},
    "weight decay": {"momentum": 0.8, "weight_decay": 0.1},
    "both": {"momentum": 0.8, "weight_decay": 0.1, "nesterov": True},
    "no momentum": {"weight_decay": 0.1},
}
WHOLE = {
    "topk": (TopK(density=1.0), "allgather"),
    "gtopk": (TopK(density=1.0), "gtopk"),
    "model-topk": (ModelTopK(density=1.0), "allgather"),
    "dense": (None, "allreduce"),
}


def corrected(model, ranks, spec, collective="allgather"):
    plan = plan_for(model, ranks, spec, collective)
    return plan.model_copy(update={"momentum_correction": True})


def loss(model, rank, step):
    inputs = torch.randn(
        5, FEATURES, generator=torch.Generator().manual_seed(100 * rank + step)
    )
    return model(inputs).square().mean()


def by_definition(options):
    """Return the parameters that SGD reaches with the mean of all losses."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        sum(loss(model, rank, step) / RANKS for rank in range(RANKS)).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def assert_all_as_by_definition(rank, options):
    """Assert that on every rank ``rank`` returns what SGD reaches."""
    for parameters in run_ranks(RANKS, rank):
        torch.testing.assert_close(
            parameters, by_definition(options), rtol=1e-4, atol=1e-5
        )


def train(model, optimizer, steps, ranks):
    """Train by the mean of the losses of ``ranks``."""
    for step in steps:
        optimizer.zero_grad()
        sum(loss(model, rank, step) / len(ranks) for rank in ranks).backward()
        optimizer.step()


@pytest.mark.parametrize("method", WHOLE)
@pytest.mark.parametrize("name", SGD)
def test_sending_everything_is_sgd_step_by_step(name, method):
    def rank(transport):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **SGD[name])
        plan = corrected(model, RANKS, *WHOLE[method])
        with parallelize(model, plan, transport=transport, optimizer=optimizer):
            train(model, optimizer, range(STEPS), [transport.rank])
        return [p.detach() for p in model.parameters()]

    assert_all_as_by_definition(rank, SGD[name])


@pytest.mark.parametrize("name", SGD)
def test_what_the_optimizer_had_built_up_goes_on(name):
    def rank(transport):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **SGD[name])
        plan = corrected(model, RANKS, *WHOLE["topk"])
        train(model, optimizer, range(2), range(RANKS))
        unused = parallelize(model, plan, transport=transport, optimizer=optimizer)
        unused.close()  # takes nothing away
        train(model, optimizer, range(2, 3), range(RANKS))
        with parallelize(model, plan, transport=transport, optimizer=optimizer):
            train(model, optimizer, range(3, STEPS), [transport.rank])
        return [p.detach() for p in model.parameters()]

    assert_all_as_by_definition(rank, SGD[name])


@pytest.mark.parametrize("name", SGD)
def test_what_goes_on_is_in_a_state_that_is_saved_before_the_first_step(name):
    def rank(transport):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **SGD[name])
        plan = corrected(model, RANKS, *WHOLE["topk"])
        train(model, optimizer, range(3), range(RANKS))
        with parallelize(
            model, plan, transport=transport, optimizer=optimizer
        ) as engine:
            saved = deepcopy(engine.state_dict())
            optimizer_state = deepcopy(optimizer.state_dict())
        optimizer.load_state_dict(optimizer_state)
        with parallelize(
            model, plan, transport=transport, optimizer=optimizer
        ) as engine:
            engine.load_state_dict(saved)
            train(model, optimizer, range(3, STEPS), [transport.rank])
        return [p.detach() for p in model.parameters()]

    assert_all_as_by_definition(rank, SGD[name])


@pytest.mark.parametrize("name", SGD)
def test_a_state_that_is_loaded_while_a_layer_is_frozen_is_the_whole_one(name):
    def rank(transport):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **SGD[name])
        plan = corrected(model, RANKS, *WHOLE["topk"])
        with parallelize(
            model, plan, transport=transport, optimizer=optimizer,
            find_unused_parameters=True,
        ) as engine:  # fmt: skip
            train(model, optimizer, range(3), [transport.rank])
            first = next(model.parameters()).requires_grad_(False)
            engine.load_state_dict(engine.state_dict())
            first.requires_grad_(True)
            train(model, optimizer, range(3, STEPS), [transport.rank])
        return [p.detach() for p in model.parameters()]

    assert_all_as_by_definition(rank, SGD[name])


class Heads(torch.nn.Module):
    """Two layers, of which a loss uses one."""

    def __init__(self):
        super().__init__()
        self.heads = torch.nn.ModuleList(torch.nn.Linear(FEATURES, 3) for _ in "ab")

    def forward(self, x, head):
        return self.heads[head](x)


def in_turns(model, optimizer, rank=None):
    """Train each head in every second step; ``rank`` None: by the mean of all ranks."""
    ranks = range(RANKS) if rank is None else [rank]
    for step in range(STEPS):
        optimizer.zero_grad()
        for each in ranks:
            head = model.heads[step % 2]
            (loss(head, each, step) / len(ranks)).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("name", SGD)
def test_a_parameter_that_no_rank_uses_stays_and_keeps_its_momentum(name):
    plain = Heads()
    start = deepcopy(plain)

    def rank(transport):
        model = deepcopy(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **SGD[name])
        plan = corrected(model, RANKS, *WHOLE["topk"])
        with parallelize(
            model, plan, transport=transport, optimizer=optimizer,
            find_unused_parameters=True,
        ):  # fmt: skip
            return in_turns(model, optimizer, transport.rank)

    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, **SGD[name])
    expected = in_turns(plain, optimizer)
    for parameters in run_ranks(RANKS, rank):
        torch.testing.assert_close(parameters, expected, rtol=1e-4, atol=1e-5)


def two_optimizers(model):
    """Return one for each half of the parameters, with another momentum."""
    *first, third, fourth = model.parameters()
    return [
        torch.optim.SGD(first, lr=0.05, momentum=0.9, weight_decay=0.1),
        torch.optim.SGD([third, fourth], lr=0.02, momentum=0.5),
    ]


@pytest.mark.parametrize("given", [0, 1])
def test_momentum_of_another_optimizer_is_left_to_it(given):
    def trained(model, optimizers, rank, ranks):
        for step in range(STEPS):
            for optimizer in optimizers:
                optimizer.zero_grad()
            sum(loss(model, each, step) / ranks for each in rank).backward()
            for optimizer in optimizers:
                optimizer.step()
        return [p.detach() for p in model.parameters()]

    def rank(transport):
        model = net()
        optimizers = two_optimizers(model)
        plan = corrected(model, RANKS, *WHOLE["topk"])
        with parallelize(model, plan, transport=transport, optimizer=optimizers[given]):
            return trained(model, optimizers, [transport.rank], 1)

    plain = net()
    expected = trained(plain, two_optimizers(plain), range(RANKS), RANKS)
    for parameters in run_ranks(RANKS, rank):
        torch.testing.assert_close(parameters, expected, rtol=1e-4, atol=1e-5)


def test_a_parameter_that_is_added_later_has_its_momentum_from_then_on():
    def trained(model, optimizer, late):
        steps(model, optimizer, 3)
        optimizer.add_param_group({"params": late, "momentum": 0.5})
        steps(model, optimizer, 3, first=3)
        return [p.detach() for p in model.parameters()]

    def begun():
        model = net()
        *early, late = model.parameters()
        return model, torch.optim.SGD(early, lr=0.05, momentum=0.9), late

    model, optimizer, late = begun()
    plan = corrected(model, 1, TopK(density=1.0))
    with parallelize(model, plan, transport=LocalTransport(), optimizer=optimizer):
        found = trained(model, optimizer, late)
    torch.testing.assert_close(found, trained(*begun()))


def test_an_optimizer_of_another_model_is_refused():
    model = net()
    other = torch.optim.SGD(net().parameters(), lr=0.1, momentum=0.9)
    plan = corrected(model, 1, TopK(density=1.0))
    with pytest.raises(InputError, match="has no parameter of the model"):
        parallelize(model, plan, transport=LocalTransport(), optimizer=other)


def test_momentum_does_not_go_into_means_again():
    model, optimizer, engine = alone(TopK(density=0.2), momentum=0.9)
    steps(model, optimizer, 1)
    optimizer.zero_grad()
    loss(model, 0, 1).backward()
    with pytest.raises(RunError, match=r"accumulate in engine.no_sync"):
        loss(model, 0, 2).backward()
    engine.close()


def test_means_may_be_thrown_away_before_the_next_backward():
    model, optimizer, engine = alone(TopK(density=0.2), momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        loss(model, 0, step).backward()
    optimizer.step()
    engine.close()


@pytest.mark.parametrize("when", ["before the optimizer's step", "after it"])
@pytest.mark.parametrize("method", ["topk", "model-topk"])
@pytest.mark.parametrize("name", SGD)
def test_changing_plans_is_sgd_step_by_step(name, method, when):
    def rank(transport):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **SGD[name])
        plans = itertools.cycle(
            [
                corrected(model, RANKS, *WHOLE[method]),
                plan_for(model, RANKS),
                corrected(model, RANKS, None, "allreduce"),
            ]
        )
        engine = parallelize(
            model, next(plans), transport=transport, optimizer=optimizer
        )

        def swap():
            engine.swap(next(plans), replan(engine.step))

        if when != "after it":
            engine.between_steps(swap)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(model, transport.rank, step).backward()
            optimizer.step()
            if when == "after it":
                swap()
        engine.close()
        return [p.detach() for p in model.parameters()]

    assert_all_as_by_definition(rank, SGD[name])


@pytest.mark.parametrize("loss_scale", [1.0, 8.0])
def test_a_residual_that_had_its_momentum_is_not_repeated(loss_scale):
    """Without gradients what was left is applied once, and momentum ends by itself."""
    scaler = torch.amp.GradScaler("cpu", init_scale=loss_scale)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
    engine = parallelize(
        model,
        corrected(model, 1, TopK(density=0.2)),
        transport=LocalTransport(),
        optimizer=optimizer,
        grad_scaler=scaler,
    )

    def step(number, weight=1.0):
        optimizer.zero_grad()
        scaler.scale(weight * loss(model, 0, number)).backward()
        scaler.step(optimizer)
        scaler.update()

    for number in range(3):
        step(number)
    expected = {}
    for name, parameter in model.named_parameters():
        left = engine.remembered()[name]
        total = (left["residual"] + left["velocity"] * 0.8 / (1 - 0.8)) / loss_scale
        expected[name] = parameter.detach() - 0.05 * total.view_as(parameter)
    engine.swap(plan_for(model, 1), replan())
    for number in range(80):
        step(number, weight=0.0)
    engine.close()
    torch.testing.assert_close(dict(model.named_parameters()), expected)


def test_velocities_that_take_a_buffer_over_have_the_scale_of_the_loss():
    weight = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    weight.grad = torch.arange(3.0)
    optimizer.step()
    velocity = torch.zeros(3)
    momentum = TakenMomentum(optimizer)
    momentum.after_step(ChangeOfSides({}, {weight: velocity}, {weight}, scale=8.0))
    momentum.settle()
    momentum.close()
    assert velocity.tolist() == [0.0, 8.0, 16.0]
    assert "momentum_buffer" not in optimizer.state[weight]


def test_a_residual_that_waits_for_its_momentum_gets_it():
    """Without gradients all of it is applied, as if momentum had come afterwards.

    What velocities are worth depends on when their elements are sent: they are 0 here.
    """
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
    late = plan_for(model, 1, TopK(density=0.2), "allgather")
    engine = parallelize(model, late, transport=LocalTransport(), optimizer=optimizer)
    steps(model, optimizer, 3)
    expected = {}
    for name, parameter in model.named_parameters():
        left = engine.remembered()[name]["residual"].view_as(parameter)
        optimizer.state[parameter]["momentum_buffer"].zero_()
        expected[name] = parameter.detach() - 0.05 * left / (1 - 0.8)
    engine.swap(corrected(model, 1, TopK(density=0.2)), replan())
    for number in range(80):
        optimizer.zero_grad()
        (0.0 * loss(model, 0, number)).backward()
        optimizer.step()
    engine.close()
    torch.testing.assert_close(dict(model.named_parameters()), expected)


def test_a_change_of_plans_that_no_step_follows_is_made_all_the_same():
    """Who drops the means of the step in which it was has the momentum too."""
    model, optimizer, engine = alone(TopK(density=1.0), momentum=0.9)
    steps(model, optimizer, 2)
    engine.between_steps(lambda: engine.swap(plan_for(model, 1), replan()))
    velocity = {n: t["velocity"] for n, t in engine.remembered().items()}
    loss(model, 0, 2).backward()
    engine.between_steps(None)
    assert not any("momentum_buffer" in state for state in optimizer.state.values())
    optimizer.zero_grad()
    loss(model, 0, 3)
    for name, parameter in model.named_parameters():
        buffer = optimizer.state[parameter]["momentum_buffer"]
        assert torch.equal(buffer.flatten(), velocity[name])
    other = torch.optim.Adam(model.parameters())
    other.step()  # the plan no longer says whose momentum it is
    engine.close()
    assert not optimizer._optimizer_step_pre_hooks


def alone(spec, optimizer_class=torch.optim.SGD, **options):
    model = net()
    optimizer = optimizer_class(model.parameters(), lr=0.05, **options)
    collective = spec.default_collective()
    plan = corrected(model, 1, spec, collective)
    engine = parallelize(model, plan, transport=LocalTransport(), optimizer=optimizer)
    return model, optimizer, engine


def steps(model, optimizer, count, first=0):
    for step in range(first, first + count):
        optimizer.zero_grad()
        loss(model, 0, step).backward()
        optimizer.step()


@pytest.mark.parametrize(
    "spec", [TopK(density=0.2), Strom(tau=0.01), Hybrid(tau=0.01), Vgc()]
)
def test_a_checkpoint_goes_on_where_it_was(spec):
    options = {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}
    model, optimizer, engine = alone(spec, **options)
    steps(model, optimizer, 3)
    saved = model.state_dict(), optimizer.state_dict(), engine.state_dict()
    saved = torch.load(_stored(saved), weights_only=False)
    steps(model, optimizer, 3, first=3)
    again, resumed, other = alone(spec, **options)
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    other.load_state_dict(saved[2])
    steps(again, resumed, 3, first=3)
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    engine.close()
    other.close()


@pytest.mark.parametrize("name", SGD)
@pytest.mark.parametrize("corrects_first", [True, False])
def test_a_checkpoint_goes_on_under_a_plan_of_the_other_kind(name, corrects_first):
    """All of it sent, momentum is SGD's on both sides, and so is what it has been."""

    def begun(model, corrects):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **SGD[name])
        plan = plan_for(model, 1)
        if corrects:
            plan = corrected(model, 1, TopK(density=1.0))
        engine = parallelize(
            model, plan, transport=LocalTransport(), optimizer=optimizer
        )
        return model, optimizer, engine

    model, optimizer, engine = begun(net(), corrects_first)
    steps(model, optimizer, 3)
    saved = model.state_dict(), optimizer.state_dict(), engine.state_dict()
    saved = torch.load(_stored(saved), weights_only=False)
    engine.close()
    resumed = begun(net(), not corrects_first)
    for part, state in zip(resumed, saved, strict=True):
        part.load_state_dict(state)
    model, optimizer, engine = resumed
    steps(model, optimizer, 3, first=3)
    engine.close()
    plain = net()
    steps(plain, torch.optim.SGD(plain.parameters(), lr=0.05, **SGD[name]), 6)
    torch.testing.assert_close(list(model.parameters()), list(plain.parameters()))


def test_a_checkpoint_whose_momentum_nothing_can_take_is_said(caplog):
    model, optimizer, engine = alone(TopK(density=0.5), momentum=0.9)
    steps(model, optimizer, 1)
    state = engine.state_dict()
    engine.close()
    with parallelize(model, plan_for(model, 1), transport=LocalTransport()) as dense:
        dense.load_state_dict(state)
    assert "corrected momentum, which is lost" in caplog.text


def _stored(content):
    import io

    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return file


def test_groups_show_the_users_options_but_while_the_optimizer_steps():
    options = {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}
    model, optimizer, engine = alone(TopK(density=0.2), **options)
    seen = []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append([optimizer.param_groups[0][key] for key in options])
    )
    steps(model, optimizer, 1)
    assert seen == [[0, 0, False]]
    assert {key: optimizer.param_groups[0][key] for key in options} == options
    engine.close()
    steps(model, optimizer, 1)
    assert seen[1] == list(options.values())


def out_of_memory(optimizer, arguments, keywords):
    raise MemoryError


def after_a_step_that_fails(times):
    """Return the model after two steps; the second's update fails so often."""
    options = {"momentum": 0.9, "weight_decay": 0.1}
    model, optimizer, engine = alone(TopK(density=0.2), **options)
    steps(model, optimizer, 1)
    optimizer.zero_grad()
    loss(model, 0, 1).backward()
    failing = optimizer.register_step_pre_hook(out_of_memory)
    for _ in range(times):
        with pytest.raises(MemoryError):
            optimizer.step()
    failing.remove()
    optimizer.step()
    engine.close()
    return list(model.parameters())


def test_momentum_is_applied_once_when_the_update_is_tried_again():
    for ours, theirs in zip(
        after_a_step_that_fails(2), after_a_step_that_fails(0), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_groups_show_the_users_options_again_in_the_step_after_one_that_failed():
    model, optimizer, engine = alone(TopK(density=0.2), momentum=0.9)
    failing = optimizer.register_step_pre_hook(out_of_memory)
    with pytest.raises(MemoryError):
        steps(model, optimizer, 1)
    failing.remove()
    optimizer.zero_grad()
    before = loss(model, 0, 1)
    assert optimizer.param_groups[0]["momentum"] == 0.9
    before.backward()
    optimizer.step()
    assert optimizer.param_groups[0]["momentum"] == 0.9
    engine.close()


def test_a_group_in_which_nothing_is_corrected_is_left_to_its_optimizer():
    model, optimizer, engine = alone(PowerSgd(rank=1), momentum=0.9)
    seen = []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append(optimizer.param_groups[0]["momentum"])
    )
    steps(model, optimizer, 2)
    assert seen == [0.9, 0.9]
    engine.close()


def test_a_momentum_that_a_schedule_changes_is_followed():
    model, optimizer, engine = alone(TopK(density=1.0), momentum=0.9)
    plain = net()
    reference = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    for step, factor in enumerate((0.9, 0.5, 0.7)):
        for each, its_model in ((optimizer, model), (reference, plain)):
            each.param_groups[0]["momentum"] = factor
            steps(its_model, each, 1, first=step)
    torch.testing.assert_close(list(model.parameters()), list(plain.parameters()))
    engine.close()


@pytest.mark.parametrize("spec", [PowerSgd(rank=1), Vgc()])
def test_some_methods_leave_momentum_to_the_mean(spec):
    model, optimizer, engine = alone(spec, momentum=0.9)
    assert not any("velocity" in each for each in engine.remembered().values())
    steps(model, optimizer, 1)
    assert all("momentum_buffer" in optimizer.state[p] for p in model.parameters())
    engine.close()


def test_what_cannot_be_right_is_refused():
    model = net()
    plan = corrected(model, 1, TopK(density=0.2))
    with pytest.raises(InputError, match="pass optimizer=optimizer"):
        parallelize(model, plan, transport=LocalTransport())
    with pytest.raises(InputError, match="SGD only, not AdamW: solve again without"):
        alone(TopK(density=0.2), torch.optim.AdamW)
    with pytest.raises(InputError, match="knows no dampening"):
        alone(TopK(density=0.2), momentum=0.9, dampening=0.1)


def test_another_optimizer_is_refused():
    model, _, engine = alone(TopK(density=0.2), momentum=0.9)
    other = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss(model, 0, 0).backward()
    with pytest.raises(RunError, match="momentum may be applied twice"):
        other.step()
    engine.close()


def test_a_closure_is_refused():
    model, optimizer, engine = alone(TopK(density=0.2), momentum=0.9)
    with pytest.raises(RunError, match="call backward first"):
        optimizer.step(lambda: loss(model, 0, 0))
    engine.close()


@pytest.mark.parametrize(
    ("make", "can"),
    [
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9), True),
        (partial(torch.optim.SGD, lr=0.1), False),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5), False),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9, maximize=True), False),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True), False),
        (torch.optim.Adam, False),
    ],
)
def test_only_the_momentum_of_plain_sgd_can_be_corrected(make, can):
    assert can_be_corrected(make(net().parameters())) is can
