"""Profiles of models that were not measured."""

import dataclasses

import pytest
import torch
from torch import nn

from comm_plan.errors import InputError
from comm_plan.plans.parameters import model_fingerprint
from comm_plan.profiler import profile_from_model, profile_from_speed
from comm_plan.workloads import load


def synthetic(model, inputs, **changes):
    times = {"forward_s": 1.0, "backward_s": 8.0, "update_s": 0.5} | changes
    return profile_from_model(model, inputs, name="toy", batch_size=4, **times)


def test_backward_is_spread_by_floating_point_operations():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    profile = synthetic(model, torch.ones(4, 4))
    # per sample: 16 MACs each for dW and dx of layer 1, 32 for dW of layer 0
    ready_s = {tensor.name: tensor.ready_s for tensor in profile.tensors}
    assert ready_s == {"1.weight": 4, "1.bias": 4, "0.weight": 8, "0.bias": 8}


def test_the_order_is_that_of_backward_not_of_registration():
    class Crossed(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(3, 3, bias=False)
            self.first = nn.Linear(3, 3, bias=False)

        def forward(self, x):
            return [self.last(self.first(x))]

    names = [t.name for t in synthetic(Crossed(), torch.ones(1, 3)).tensors]
    assert names == ["last.weight", "first.weight"]


def test_a_model_may_return_its_tensors_in_a_dict():
    class Named(nn.Linear):
        def forward(self, x):
            return {"logits": super().forward(x), "name": "ignored"}

    names = [t.name for t in synthetic(Named(2, 2), torch.ones(1, 2)).tensors]
    assert sorted(names) == ["bias", "weight"]


def test_the_model_stays_as_it_is():
    model = nn.Linear(2, 2).eval()
    profile = synthetic(model, torch.ones(1, 2))
    assert model.weight.device.type == "cpu"
    assert not model.training
    assert not model.weight._post_accumulate_grad_hooks
    assert "synthetic" in profile.environment


def test_a_model_without_countable_operations_is_ready_at_the_end():
    profile = synthetic(nn.LayerNorm(3), torch.ones(1, 3))
    assert [tensor.ready_s for tensor in profile.tensors] == [8.0, 8.0]


def test_a_parameter_without_gradient_is_named():
    model = nn.Linear(2, 2)
    model.spare = nn.Parameter(torch.ones(1))
    with pytest.raises(InputError, match="get no gradient: spare"):
        synthetic(model, torch.ones(1, 2))


def test_tied_weights_are_one_parameter_that_is_ready_when_all_its_uses_are():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3, bias=False)
            self.middle = nn.Linear(3, 3, bias=False)
            self.last = nn.Linear(3, 3, bias=False)
            self.last.weight = self.first.weight

        def forward(self, x):
            return self.last(self.middle(self.first(x)))

    model = Tied()
    profile = synthetic(model, torch.ones(1, 3))
    assert [t.name for t in profile.tensors] == ["middle.weight", "first.weight"]
    assert profile.model.fingerprint == model_fingerprint(model)


def test_how_sparse_a_gradient_is_cannot_be_counted():
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"are sparse.* 0\.weight"):
        synthetic(model, torch.ones(1, 2, dtype=torch.long))


def test_the_speed_of_a_device_gives_the_times_of_a_perceptron():
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 2, bias=False))
    workload = load("digits", batch_size=5)
    batches = iter([torch.ones(5, 4)])
    workload = dataclasses.replace(
        workload,
        model=model,
        batches=lambda *_: batches,
        loss=lambda model, batch: model(batch.to("meta")).sum(),
    )
    profile = profile_from_speed(workload, flops_per_s=10.0)
    # 5 samples, 2 operations a MAC: 32 + 16 MACs forward; dW, dx of layer 1, dW of 0.
    assert profile.forward_s == pytest.approx(5 * 2 * (32 + 16) / 10)
    assert profile.backward_s == pytest.approx(5 * 2 * (16 + 16 + 32) / 10)
    assert [t.ready_s for t in profile.tensors] == pytest.approx([32.0, 64.0])


def test_a_device_without_speed_is_refused():
    with pytest.raises(InputError, match="operations a second"):
        profile_from_speed(load("digits"), flops_per_s=0.0)


def test_a_device_too_slow_for_words_is_refused():
    with pytest.raises(InputError, match="the profile of "):
        synthetic(nn.Linear(2, 2), torch.ones(1, 2), forward_s=1e12)


def test_a_parameter_that_cannot_be_planned_is_refused():
    class Odd(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.none = nn.Parameter(torch.ones(0))

        def forward(self, x):
            return super().forward(x) + self.none.sum()

    with pytest.raises(InputError, match="none of model toy has no elements"):
        synthetic(Odd(), torch.ones(1, 2))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameters"),
        (nn.LazyLinear(2), "weight of model toy has no shape yet"),
    ],
)
def test_what_cannot_be_planned_is_refused_before_it_is_counted(model, message):
    workload = dataclasses.replace(load("digits"), name="toy", model=model)
    with pytest.raises(InputError, match=message):
        synthetic(model, torch.ones(1, 2))
    with pytest.raises(InputError, match=message):
        profile_from_speed(workload, 1e9)


def test_a_model_that_needs_numbers_is_refused():
    class Asks(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x

    workload = dataclasses.replace(
        load("digits"),
        model=Asks(2, 2),
        loss=lambda m, _: m(torch.ones(1, 2).to("meta")),
    )
    with pytest.raises(InputError, match="cannot be counted without numbers"):
        profile_from_speed(workload, 1e9)
