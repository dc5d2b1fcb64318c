"""What second moments take is measured where a model can have them."""

import pytest
import torch
from torch import nn

from comm_plan.plans.profile import SecondMoments
from comm_plan.profiler import measure
from comm_plan.profiler import second_moments as module
from comm_plan.profiler.second_moments import with_second_moments
from comm_plan.tests.profiler.test_measure import Toy, chain
from comm_plan.tests.profiler.test_round_trip import FakeTime
from comm_plan.transports import elapsed
from comm_plan.transports.local import LocalTransport


class Eight(Toy):
    """Batches that can be cut."""

    def batches(self, rank, world_size, epoch, seed):
        yield from torch.ones(3, 8, 4)


@pytest.fixture(scope="module")
def toy():
    workload = Toy(chain())
    return workload, measure(workload, iterations=20)


@pytest.fixture
def clock(monkeypatch):
    """A clock that only sleeping moves."""
    fake = FakeTime()
    monkeypatch.setattr(elapsed, "time", fake)
    return fake


def test_exact_ones_are_timed_over_all_parameters(toy, monkeypatch, clock):
    asked = []

    class Watched(module.ExactSecondMoments):
        def of(self, parameter):
            asked.append(parameter.shape)
            clock.sleep(0.25)
            return super().of(parameter)

    monkeypatch.setattr(module, "ExactSecondMoments", Watched)
    workload, profile = toy
    found = with_second_moments(workload, profile, LocalTransport()).second_moments
    assert found.objection is None
    assert found.extra_s == 0.25 * len(list(workload.model.parameters()))
    assert set(asked) == {p.shape for p in workload.model.parameters()}


@pytest.mark.parametrize("mixes", [False, True])
def test_sparse_gradients_need_none(mixes, clock):
    class Rows(Eight):
        def batches(self, rank, world_size, epoch, seed):
            yield from torch.arange(8).repeat(3, 1)

    layers = [nn.Embedding(9, 4, sparse=True), *[nn.BatchNorm1d(4)] * mixes, chain()]
    workload = Rows(nn.Sequential(*layers))
    profile = measure(workload, iterations=20)
    found = with_second_moments(workload, profile, LocalTransport()).second_moments
    assert bool(found.objection) == mixes
    assert found.extra_s == 0.0  # of a clock that stands


def test_complex_gradients_need_none(clock):
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, dtype=torch.complex64))

        def forward(self, x):
            return (self.weight * x).abs()

    workload = Eight(nn.Sequential(Turned(), chain()))
    profile = measure(workload, iterations=20)
    found = with_second_moments(workload, profile, LocalTransport()).second_moments
    assert found.objection
    assert found.extra_s == 0.0


def test_a_model_that_mixes_samples_is_timed_in_micro_batches(monkeypatch, clock):
    workload = Eight(nn.Sequential(chain(), nn.BatchNorm1d(4)))
    profile = measure(workload, iterations=20)
    assert profile.second_moments.objection
    cut = []
    real = module.iterate

    def counting(*arguments, micro_batches=1, **options):
        cut.append(micro_batches)
        clock.sleep(micro_batches)
        return real(*arguments, micro_batches=micro_batches, **options)

    monkeypatch.setattr(module, "iterate", counting)
    found = with_second_moments(workload, profile, LocalTransport()).second_moments
    parts = profile.second_moments.micro_batches
    assert set(cut) == {1, parts}
    assert found.extra_s == parts - 1


def test_ranks_meet_once_an_iteration_when_second_moments_are_there(toy, monkeypatch):
    events = []

    class Asked(module.ExactSecondMoments):
        def of(self, parameter):
            events.append("asked")
            return super().of(parameter)

    class Met(module.Rendezvous):
        def meet(self):
            events.append("met")
            super().meet()

    monkeypatch.setattr(module, "ExactSecondMoments", Asked)
    monkeypatch.setattr(module, "Rendezvous", Met)
    workload, profile = toy
    with_second_moments(workload, profile, LocalTransport())
    parameters = len(list(workload.model.parameters()))
    pair = ["met", *["asked"] * parameters, "met"]
    assert events == pair * (1 + module.ITERATIONS)


@pytest.mark.parametrize("moments", [None, SecondMoments(objection="a layer")])
def test_what_cannot_be_had_is_not_timed(toy, moments):
    workload, profile = toy
    without = profile.model_copy(update={"second_moments": moments})
    assert with_second_moments(workload, without, LocalTransport()) == without


@pytest.mark.parametrize(("kind", "timed"), [("topk", False), ("vgc", True)])
def test_they_are_timed_if_a_method_needs_them(kind, timed):
    torch.manual_seed(0)
    profile = measure(Toy(chain()), kinds=[kind], iterations=20)
    assert (profile.second_moments.extra_s is not None) == timed
