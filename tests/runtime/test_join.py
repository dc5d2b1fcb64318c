"""Uneven numbers of batches, beyond what the oracle compares with DDP."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.join import Join

from comm_plan import parallelize
from comm_plan.tests.runtime.trainings import FEATURES, net, plan_for
from comm_plan.tests.support.harness import MAX_RANKS, real_ranks


def two_forwards_a_step(transport, layers):
    """Return the model's state after one step, and one more on every other rank."""
    model = net(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = plan_for(model, transport.world_size)
    with (
        parallelize(model, plan, transport=transport) as engine,
        Join([engine]),
    ):
        for step in range(1 + transport.rank % 2):
            optimizer.zero_grad()
            x = torch.full((2, FEATURES), float(step + transport.rank))
            (model(x) + model(2 * x)).square().mean().backward()
            optimizer.step()
    return model.state_dict(), engine.step


@pytest.mark.slow
@pytest.mark.parametrize("layers", [(), (nn.BatchNorm1d(16),)], ids=["none", "some"])
def test_a_rank_without_batches_shadows_two_forwards(layers):
    """With and without buffers: it takes no part in what lies between them."""
    ranks = real_ranks("gloo").run(MAX_RANKS, two_forwards_a_step, layers)
    for state, steps in ranks:
        assert steps == 2
        for name, value in state.items():
            assert torch.equal(value, ranks[0][0][name])


def a_step_without_a_loss_after_a_shadowed_one(transport):
    """Return the gradients after an epoch of uneven batches and one step more."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = plan_for(model, transport.world_size)
    x = torch.ones(2, FEATURES)
    with parallelize(
        model, plan, transport=transport, find_unused_parameters=True
    ) as engine:
        with Join([engine]):
            for _ in range(1 + transport.rank):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        optimizer.zero_grad()
        output = model(x)
        if transport.rank == MAX_RANKS - 1:
            output.square().mean().backward()
        optimizer.step()
        return engine.step, [p.grad for p in model.parameters()]


@pytest.mark.slow
def test_a_rank_that_shadowed_takes_part_in_the_next_step_without_a_loss():
    ranks = real_ranks("gloo").run(
        MAX_RANKS, a_step_without_a_loss_after_a_shadowed_one
    )
    for steps, gradients in ranks:
        assert steps == MAX_RANKS + 1
        assert all(map(torch.equal, gradients, ranks[0][1]))
