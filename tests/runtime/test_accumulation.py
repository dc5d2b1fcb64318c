"""What ``no_sync`` accumulates, and what becomes of it."""

import copy

import pytest
import torch
from torch import nn

from comm_plan import parallelize
from comm_plan.plans import TopK
from comm_plan.tests.runtime.test_swap import replan
from comm_plan.tests.runtime.trainings import plan_for
from comm_plan.tests.support.harness import run_ranks

WIDTH = 4
METHODS = {"dense": (), "topk": (TopK(density=1.0), "allgather")}


class Heads(nn.Module):
    """Two layers, of which a loss may use any or none."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, 3)
        self.second = nn.Linear(WIDTH, 3)
        for parameter in self.parameters():
            nn.init.ones_(parameter)

    def forward(self, x, *use):
        outputs = [getattr(self, name)(x).sum() for name in use]
        return torch.stack([x.sum().requires_grad_(), *outputs]).sum()


def means(transport, method, use, swaps=False):
    """Accumulate all of it, then take a step whose loss uses ``use`` of the rank."""
    model = Heads()
    reference = copy.deepcopy(model)
    plan = plan_for(model, 2, *METHODS[method])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.full((2, WIDTH), 1.0 + transport.rank)
    with parallelize(
        model, plan, transport=transport, find_unused_parameters=True
    ) as engine:
        with engine.no_sync():
            model(x, "first", "second").backward()
        if swaps:
            swapped = plan_for(model, 2, *METHODS[method], per_bucket=1)
            engine.swap(swapped, replan())
        model(x, *use[transport.rank]).backward()
        optimizer.step()
        transport.barrier()  # the hooks on optimizers are those of all threads
    for names in (("first", "second"), use[transport.rank]):
        reference(x, *names).backward()
    for parameter in reference.parameters():
        mean = parameter.grad.flatten().clone()
        transport.all_reduce(mean)
        parameter.grad.copy_(mean.view_as(parameter) / 2)
    return model, reference


@pytest.mark.parametrize("swaps", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "use",
    [((), ("first", "second")), (("first",), ("second",)), (("second",), ())],
    ids=["none and both", "one each", "one and none"],
)
def test_what_was_accumulated_is_averaged_whatever_the_step_uses(use, method, swaps):
    for model, reference in run_ranks(2, means, method, use, swaps):
        for own, expected in zip(
            model.parameters(), reference.parameters(), strict=True
        ):
            torch.testing.assert_close(own.grad, expected.grad)


def test_a_second_backward_over_a_graph_is_averaged_too():
    def rank(transport):
        model = Heads()
        x = torch.full((2, WIDTH), 1.0 + transport.rank)
        with parallelize(model, plan_for(model, 2), transport=transport):
            value = model(x, "first", "second")
            value.backward(retain_graph=True)
            (3 * value).backward()
        return [parameter.grad for parameter in model.parameters()]

    once = Heads()
    for number in range(2):
        (once(torch.full((2, WIDTH), 1.0 + number), "first", "second") / 2).backward()
    for found in run_ranks(2, rank):
        expected = [4 * parameter.grad for parameter in once.parameters()]
        torch.testing.assert_close(found, expected)
