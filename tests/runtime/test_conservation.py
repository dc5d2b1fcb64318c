"""No gradient is lost, whatever the training loop does."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from comm_plan import parallelize
from comm_plan.plans import (
    DoubleSqueeze,
    Hybrid,
    PartitionTopK,
    PowerSgd,
    SparDL,
    Strom,
    TopK,
)
from comm_plan.tests.runtime.trainings import Failing, plan_for
from comm_plan.tests.support.harness import run_ranks

pytestmark = pytest.mark.usefixtures("as_on_a_gpu_too")

RANKS = 2
WIDTH = 6
METHODS = {
    "topk": (TopK(density=0.2), "allgather"),
    "gtopk": (TopK(density=0.2), "gtopk"),
    "spardl": (SparDL(density=0.2), "spardl"),
    "partition topk": (PartitionTopK(density=0.2), "allreduce"),
    "strom": (Strom(tau=0.05), "allgather"),
    "hybrid": (Hybrid(tau=0.05), "allgather"),
    "doublesqueeze": (DoubleSqueeze(bits=3, group_numel=32), "two_pass"),
    "powersgd": (PowerSgd(rank=1), "allreduce"),
}

ACTIONS = [
    "backward of both",
    "backward of the first",
    "backward of the second",
    "backward of another head on each rank",
    "the second without synchronising",
    "both without synchronising",
    "backward fails on all ranks",
    "backward fails on one rank",
    "torch.autograd.grad",
    "forward only",
    "step",
    "a step of the first alone",
    "a step of the second alone, zeros left",
    "steps of both in turn, each after zero_grad of all",
    "a backward of both, a forward, steps of both in turn",
]


class Heads(nn.Module):
    """Two layers, each of which a loss may leave out."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, 4)
        self.second = nn.Linear(WIDTH, 4)

    def forward(self, x, use):
        return sum(getattr(self, name)(x) for name in use)


class Loop:
    """One rank's training loop, and the count of what its backwards made."""

    def __init__(self, transport, method):
        torch.manual_seed(0)
        self.model = Heads()
        self.rank = transport.rank
        plan = plan_for(self.model, RANKS, *METHODS[method])
        self.engine = parallelize(
            self.model, plan, transport=transport, find_unused_parameters=True
        )
        self.parameters = dict(self.model.named_parameters())
        self.made = {n: torch.zeros_like(p) for n, p in self.parameters.items()}
        self.applied = {n: torch.zeros_like(p) for n, p in self.parameters.items()}
        for name, parameter in self.parameters.items():
            parameter.register_hook(partial(self.count, name))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.own = {
            name: torch.optim.SGD(getattr(self.model, name).parameters(), lr=0.0)
            for name in ("first", "second")
        }
        self.generator = torch.Generator().manual_seed(100 + self.rank)
        self.optimizer.zero_grad()

    def count(self, name, gradient):
        self.made[name] += gradient

    def loss(self, *use):
        x = torch.randn(3, WIDTH, generator=self.generator)
        return self.model(x, use).square().mean()

    def failing_loss(self):
        x = torch.randn(3, WIDTH, generator=self.generator)
        late = Failing.apply(self.model.first(x))
        return (self.model(x, ("second",)) + late).square().mean()

    def do(self, action):
        if action == "backward of both":
            self.loss("first", "second").backward()
        elif action == "backward of the first":
            self.loss("first").backward()
        elif action == "backward of the second":
            self.loss("second").backward()
        elif action == "backward of another head on each rank":
            self.loss("second" if self.rank else "first").backward()
        elif action == "the second without synchronising":
            with self.engine.no_sync():
                self.loss("second").backward()
        elif action == "both without synchronising":
            with self.engine.no_sync():
                self.loss("first", "second").backward()
        elif action.startswith("backward fails"):
            self.fail(on_this_rank=self.rank == 0 or action.endswith("all ranks"))
        elif action == "torch.autograd.grad":
            x = torch.randn(3, WIDTH, generator=self.generator, requires_grad=True)
            torch.autograd.grad(self.model(x, ("first", "second")).sum(), x)
        elif action == "forward only":
            self.loss("first", "second")
        elif action == "a step of the first alone":
            self.loss("first").backward()
            self.step_of("first").zero_grad()
        elif action == "a step of the second alone, zeros left":
            self.loss("second").backward()
            self.step_of("second").zero_grad(set_to_none=False)
        elif action == "steps of both in turn, each after zero_grad of all":
            self.step()
            for name in self.own:
                self.optimizer.zero_grad()
                self.loss(name).backward()
                self.step_of(name)
            self.optimizer.zero_grad()
        elif action == "a backward of both, a forward, steps of both in turn":
            self.loss("first", "second").backward()
            self.loss("first", "second")
            for name in self.own:
                self.step_of(name)
            self.optimizer.zero_grad()
        else:
            self.step()

    def fail(self, on_this_rank):
        """Begin a step of its own: who catches an error begins anew."""
        self.step()
        if on_this_rank:
            with pytest.raises(MemoryError):
                self.failing_loss().backward()
        else:
            self.loss("first", "second").backward()
        self.optimizer.step()
        self.optimizer.zero_grad()  # what failed is not applied

    def step(self):
        """Synchronise what was accumulated, and apply it."""
        self.loss("first", "second").backward()
        self.optimizer.step()
        for name, parameter in self.parameters.items():
            self.applied[name] += parameter.grad
        self.optimizer.zero_grad()

    def step_of(self, head):
        """Apply what there is of one head; return its optimizer."""
        self.own[head].step()
        for name, parameter in self.parameters.items():
            if name.startswith(head) and parameter.grad is not None:
                self.applied[name] += parameter.grad
        return self.own[head]

    def accounts(self):
        """Return what was made, what was applied, and what is still to come."""
        states = self.engine.remembered()
        left = {n: states[n]["residual"].view_as(p) for n, p in self.parameters.items()}
        return self.made, self.applied, left


def spent(actions, method):
    """Return the accounts of all ranks after ``actions`` and a last step."""

    def rank(transport):
        loop = Loop(transport, method)
        for action in actions:
            loop.do(action)
        loop.step()
        accounts = loop.accounts()
        loop.engine.close()
        return accounts

    return run_ranks(RANKS, rank)


def check(actions, method):
    ranks = spent(actions, method)
    for name in ranks[0][0]:
        made = sum(made[name] for made, _, _ in ranks)
        left = sum(left[name] for _, _, left in ranks)
        applied = ranks[0][1][name]
        for _, other, _ in ranks:
            torch.testing.assert_close(other[name], applied)
        torch.testing.assert_close(
            RANKS * applied + left, made, rtol=1e-4, atol=1e-5, msg=f"{name}: {actions}"
        )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("action", ACTIONS)
def test_no_gradient_is_lost_by_anything_a_loop_does(action, method):
    check(["step", action, "step"], method)


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=8),
    st.sampled_from(sorted(METHODS)),
)
def test_no_gradient_is_lost_by_any_sequence_of_them(actions, method):
    check(actions, method)
