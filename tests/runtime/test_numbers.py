"""Gradients of every kind of number, by every method: what is kept stays finite.

The ranks agree in every bit, and a step that cannot be taken is refused on all of them
with the rank that is to blame, wherever that is.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from comm_plan import parallelize
from comm_plan.errors import NonFiniteError
from comm_plan.plans import ModelTopK, SparDL, TopK
from comm_plan.plans.compression import METHODS
from comm_plan.runtime.guard import Guard
from comm_plan.tests.runtime.trainings import BATCH, FEATURES, net, plan_for
from comm_plan.tests.support.harness import run_ranks

pytestmark = pytest.mark.usefixtures("as_on_a_gpu_too")

RANKS = 3
REFUSED = [(math.nan, rank) for rank in range(RANKS)]
REFUSED += [(math.inf, 1), (-math.inf, 2), (3e38, 0), (3e38, "all")]
CLIPPED = {
    "topk, clipped": (TopK(density=0.1, clip_norm=0.5), "allgather"),
    "model-topk, clipped": (ModelTopK(density=0.1, clip_norm=0.5), "allgather"),
    "spardl, clipped": (SparDL(density=0.1, clip_norm=0.5), "spardl"),
}
SCALABLE = {name: of for name, of in METHODS.items() if name != "fp16"} | CLIPPED
"""fp16 is coarser where numbers are smaller."""
TAKEN = [(0.0, "all"), (0.0, 1), (1e-40, 2), (1.4e-45, "all"), (1e4, 0)]


class Scaled(torch.autograd.Function):
    """The identity, whose backward replaces the gradient by ``value`` everywhere."""

    @staticmethod
    def forward(context, x, value):
        context.value = value
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return torch.full_like(gradient, context.value), None


class Trained:
    """One rank of a training: three steps, in the second of which one number rules."""

    def __init__(self, transport, name, value, who, on_nonfinite="skip"):
        generator = torch.Generator().manual_seed(0)
        # The last bias is a tensor of a single element.
        layers = (nn.Linear(*width, dtype=torch.float32) for width in ((6, 5), (5, 1)))
        self.model = nn.Sequential(*layers)
        for parameter in self.model.parameters():
            nn.init.uniform_(parameter, -0.4, 0.4, generator=generator)
        spec, collective = METHODS[name]
        plan = plan_for(self.model, RANKS, spec, collective)
        self.engine = parallelize(
            self.model, plan, transport=transport, on_nonfinite=on_nonfinite
        )
        self.said = None
        affected = who in (transport.rank, "all")
        for step in range(3):
            self.step(transport.rank + step, value if affected and step == 1 else None)
            if step == 1:
                self.refused = self.engine.skipped_steps == 1 or self.said is not None
        self.parameters = parameters_to_vector(self.model.parameters())
        self.remembered = [
            tensor
            for quantities in self.engine.remembered().values()
            for tensor in quantities.values()
        ]
        self.engine.close()

    def step(self, seed, value):
        generator = torch.Generator().manual_seed(seed)
        self.model.zero_grad()
        inputs = torch.randn(4, 6, generator=generator, dtype=torch.float32)
        outputs = self.model(inputs)
        if value is not None:
            outputs = Scaled.apply(outputs, value)
        try:
            outputs.square().sum().backward()
        except NonFiniteError as error:
            self.said = str(error)
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None and self.said is None:
                    parameter -= 1e-3 * parameter.grad


def check_agreed(ranks):
    for rank in ranks:
        assert torch.equal(rank.parameters, ranks[0].parameters)
        assert rank.refused == ranks[0].refused
        assert rank.parameters.isfinite().all()
        assert all(tensor.isfinite().all() for tensor in rank.remembered)


@pytest.mark.parametrize("name", METHODS)
def test_what_is_no_number_is_refused_by_all_ranks(name):
    for value, who in REFUSED:
        ranks = run_ranks(RANKS, Trained, name, value, who)
        check_agreed(ranks)
        assert all(rank.refused for rank in ranks), (value, who)


@pytest.mark.parametrize("name", METHODS)
def test_what_is_a_number_is_taken_however_small(name):
    for value, who in TAKEN:
        ranks = run_ranks(RANKS, Trained, name, value, who)
        check_agreed(ranks)
        assert not any(rank.refused for rank in ranks), (value, who)


@pytest.mark.parametrize(
    ("value", "dtype", "taken"),
    [
        (6e4, torch.float16, True),
        (1e15, torch.bfloat16, True),
        (1e15, torch.float32, True),
        (1e20, torch.float32, False),  # a residual would hold it, a variance not
        (1e20, torch.bfloat16, False),
    ],
)
def test_numbers_are_taken_if_their_squares_can_be_summed(value, dtype, taken):
    guard = Guard()
    gradient = torch.full((1000,), value, dtype=dtype)
    admitted, _ = guard.admit("weight", gradient, None)
    assert torch.equal(admitted, gradient if taken else torch.zeros_like(gradient))
    assert guard.names == ([] if taken else ["weight"])


def test_second_moments_that_overflow_are_refused_too():
    guard = Guard()
    gradient, moment = torch.ones(3), torch.tensor([1.0, math.inf, 1.0])
    assert not any(part.any() for part in guard.admit("weight", gradient, moment))
    assert guard.names == ["weight"]


@pytest.mark.parametrize("name", METHODS)
def test_a_refusal_names_the_rank_or_that_it_was_one_of_them(name):
    ranks = run_ranks(RANKS, Trained, name, math.nan, 1, "stop")
    check_agreed(ranks)
    spec, _ = METHODS[name]
    culprit = "some rank" if spec.carries_nonfinite else "rank 1"
    for rank in ranks:
        assert f"{culprit} had inf or NaN gradients" in rank.said
    guarded = [] if spec.carries_nonfinite else [1]
    assert [
        i for i, rank in enumerate(ranks) if "; this rank in" in rank.said
    ] == guarded


@pytest.fixture
def default_dtype():
    """What sets the dtype of new tensors, until the test's end."""
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


@pytest.mark.parametrize("name", METHODS)
def test_the_default_dtype_of_the_users_program_changes_nothing(name, default_dtype):
    """A model keeps its dtype where the program's other tensors have another."""
    expected = run_ranks(RANKS, Trained, name, None, "all")
    for dtype in (torch.float64, torch.bfloat16):
        default_dtype(dtype)
        for rank, reference in zip(
            run_ranks(RANKS, Trained, name, None, "all"), expected, strict=True
        ):
            assert torch.equal(rank.parameters, reference.parameters)
            each = zip(rank.remembered, reference.remembered, strict=True)
            assert all(torch.equal(own, other) for own, other in each)


@pytest.mark.parametrize("name", METHODS)
def test_the_default_device_of_the_users_program_changes_nothing(name):
    """A model may be elsewhere than where the program's other tensors are made."""

    def trained(transport, elsewhere):
        model = net()
        plan = plan_for(model, RANKS, *METHODS[name])
        batch = torch.ones(BATCH, FEATURES)
        with torch.device("meta") if elsewhere else nullcontext():
            engine = parallelize(
                model, plan, transport=transport, find_unused_parameters=True
            )
            with engine:
                model(batch).square().mean().backward()
                model(batch)
                engine.skip_step()
        return parameters_to_vector(model.parameters()), engine.skipped_steps

    expected = run_ranks(RANKS, trained, False)
    for own, reference in zip(run_ranks(RANKS, trained, True), expected, strict=True):
        assert torch.equal(own[0], reference[0])
        assert own[1] == reference[1] == 1


def trained_at(scale, method):
    """Return what ranks have after six steps, in which the scale of the loss doubles.

    None: the loss has no scale.
    """

    def rank(transport):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(
            "cpu", init_scale=scale or 1.0, growth_interval=2, enabled=scale is not None
        )
        plan = plan_for(model, RANKS, *SCALABLE[method])
        generator = torch.Generator().manual_seed(transport.rank)
        with parallelize(model, plan, transport=transport, grad_scaler=scaler):
            for _ in range(6):
                inputs = torch.randn(BATCH, FEATURES, generator=generator)
                optimizer.zero_grad()
                scaler.scale(model(inputs).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
        return parameters_to_vector(model.parameters()).detach()

    return run_ranks(RANKS, rank)


@pytest.mark.parametrize("method", SCALABLE)
def test_a_loss_that_is_scaled_by_powers_of_2_trains_as_one_that_is_not(method):
    expected, *_ = trained_at(None, method)
    for parameters in trained_at(2.0**16, method):
        assert torch.equal(parameters, expected)
