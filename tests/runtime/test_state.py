"""What is remembered is shared out among another number of ranks."""

import torch

from comm_plan.plans import PowerSgd
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.state import share_of
from comm_plan.tests.runtime.trainings import net, plan_for
from comm_plan.transports.local import LocalTransport

NAME = "0.weight"


def engine(rank):
    model = net()
    return Engine(model, plan_for(model, 1, PowerSgd(rank=rank)), LocalTransport())


def test_residuals_are_summed_and_what_is_equal_on_all_ranks_is_not():
    residuals, factors = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0])
    ranks = {
        str(rank): {NAME: {"residual": residuals[rank], "factors": factors}}
        for rank in range(2)
    }
    for rank in range(4):
        share = share_of(ranks, 2, rank, 4)[NAME]
        assert share["residual"].equal(torch.tensor([1.0, 1.5]))
        assert share["factors"].equal(factors)


def test_another_rank_takes_the_residuals_over_and_starts_with_its_own_factors():
    before, after, fresh = engine(rank=1), engine(rank=2), engine(rank=2)
    state = before.state_dict()
    state["ranks"]["0"][NAME]["residual"].fill_(7.0)
    after.load_state_dict(state)
    remembered = after.remembered()[NAME]
    assert remembered["residual"].eq(7.0).all()
    assert remembered["factors"].equal(fresh.remembered()[NAME]["factors"])
    for each in (before, after, fresh):
        each.close()
