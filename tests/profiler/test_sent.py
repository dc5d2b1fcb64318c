"""What is sent where the data decides, against a loop over elements."""

import math
import time

import pytest
import torch
from torch import nn

from comm_plan.plans import CompressionCost
from comm_plan.plans.compression import Strom
from comm_plan.profiler import measure
from comm_plan.profiler import sent as module
from comm_plan.profiler.compression import DENSITIES, MOST_SENT
from comm_plan.profiler.sent import with_sent
from comm_plan.tests.profiler.test_measure import Toy
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport

TAU = Strom.example().tau
STEPS = 12


class Constant(Toy):
    """Gradients that never change: those of a linear model are its inputs."""

    def __init__(self, inputs, momentum=0.0, **options):
        super().__init__(nn.Linear(len(inputs), 1, bias=False))
        self.inputs = torch.tensor(inputs)
        self.options = {"momentum": momentum, **options}

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.01, **self.options)

    def batches(self, rank, world_size, epoch, seed):
        for _ in range(3):
            yield self.inputs[None] * (rank + 1)


class Normal(Toy):
    """A batch of normal gradients."""

    def __init__(self):
        super().__init__(nn.Linear(50, 1, bias=False))

    def batches(self, rank, world_size, epoch, seed):
        random = torch.Generator().manual_seed(rank)
        for _ in range(100):
            yield torch.randn(8, 50, generator=random)


@pytest.fixture(autouse=True)
def as_many_steps_everywhere(monkeypatch):
    monkeypatch.setattr(module, "ITERATIONS", (STEPS, STEPS))


def sent_by_strom(gradients, momentum):
    """Return the share that is sent in the second half of the steps."""
    counts = []
    residual = [0.0] * len(gradients)
    velocity = [0.0] * len(gradients)
    for _ in range(STEPS):
        count = 0
        for i, gradient in enumerate(gradients):
            velocity[i] = momentum * velocity[i] + gradient
            residual[i] += velocity[i]
            if abs(residual[i]) > TAU:
                residual[i] -= TAU if residual[i] > 0 else -TAU
                count += 1
        counts.append(count / len(gradients))
    late = counts[STEPS // 2 :]
    return sum(late) / len(late)


INPUTS = [TAU * share for share in (0.09, -0.23, 0.41, 0.57, -1.3, 0.0)]


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_strom_sends_what_exceeds_its_threshold(momentum, decay):
    """What the optimizer adds to gradients, as of weight decay, was not sent."""
    workload = Constant(INPUTS, momentum, weight_decay=decay)
    profile = measure(workload, iterations=20)
    seen = with_sent(workload, profile, ["strom"], LocalTransport()).sent["strom"]
    assert 0 < seen.density < 1
    assert seen.density == pytest.approx(sent_by_strom(INPUTS, 0.0))
    if momentum:
        assert seen.corrected == pytest.approx(sent_by_strom(INPUTS, momentum))
        assert seen.corrected > seen.density
    else:
        assert seen.corrected is None


def test_the_rank_counts_that_sends_most():
    def profiled(transport):
        workload = Constant(INPUTS)
        profile = measure(workload, transport, iterations=20)
        return with_sent(workload, profile, ["strom"], transport).sent["strom"]

    first, second = run_ranks(2, profiled)
    expected = sent_by_strom([2 * value for value in INPUTS], 0.0)
    assert expected > sent_by_strom(INPUTS, 0.0)
    assert first == second
    assert first.density == pytest.approx(expected)


def test_of_noise_an_eager_method_sends_more():
    """VGC sends few of them: their mean is zero."""
    workload = Normal()
    profile = measure(workload, iterations=20)
    seen = with_sent(workload, profile, ["vgc", "hybrid", "strom"], LocalTransport())
    vgc, strom = (seen.sent[kind].density for kind in ("vgc", "strom"))
    assert 0 < vgc < 0.5 < strom
    assert "hybrid" in seen.sent


def test_the_model_is_as_before():
    workload = Normal()
    profile = measure(workload, iterations=20)
    before = workload.model.weight.detach().clone()
    with_sent(workload, profile, ["strom"], LocalTransport())
    assert workload.model.weight.equal(before)


class Overflowing(Constant):
    """Every other step has an infinite gradient."""

    def loss(self, model, batch):
        self.steps = getattr(self, "steps", 0) + 1
        return super().loss(model, batch) * (torch.inf if self.steps % 2 else 1.0)


def test_steps_that_are_skipped_do_not_count():
    plain, overflowing = Constant(INPUTS), Overflowing(INPUTS)
    profile = measure(plain, iterations=20)
    found = with_sent(overflowing, profile, ["strom"], LocalTransport()).sent["strom"]
    assert found.density > 0.3  # half of it, if they did


def test_what_overflows_in_every_step_shows_nothing():
    class Always(Constant):
        def loss(self, model, batch):
            return super().loss(model, batch) * torch.inf

    profile = measure(Constant(INPUTS), iterations=20)
    assert with_sent(Always(INPUTS), profile, ["strom"], LocalTransport()).sent == {}


def test_vgc_leaves_momentum_to_the_optimizer():
    workload = Constant(INPUTS, momentum=0.5)
    profile = measure(workload, iterations=20)
    seen = with_sent(workload, profile, ["vgc"], LocalTransport()).sent["vgc"]
    assert seen.corrected == seen.density


def test_methods_whose_density_is_chosen_have_none_to_be_seen():
    workload = Normal()
    profile = measure(workload, kinds=["topk", "strom"], iterations=20)
    assert list(profile.sent) == ["strom"]
    assert measure(workload, kinds=["topk"], iterations=20).sent == {}


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_costs_are_as_long_as_what_was_seen_takes(momentum, monkeypatch):
    """Interpolated at the densities that were seen, with momentum corrected too."""
    monkeypatch.setattr(module, "busy_s", lambda engine, kind: 7.0)
    workload = Constant(INPUTS, momentum)
    profile = measure(workload, iterations=20)
    alone = tuple(
        CompressionCost(
            numel=numel,
            density=density,
            compress_s=5.0,
            encode_s=numel * (1 + density),
            decompress_s=numel * density,
            another_s=1.0,
            momentum_encode_s=numel,
        )
        for numel in (1, 2 * len(INPUTS))
        for density in (0.1, 1.0)
    )
    profile = profile.model_copy(update={"compression": {"strom": alone}})
    found = with_sent(workload, profile, ["strom"], LocalTransport())
    seen = found.sent["strom"]

    def alone_s(density, corrected):
        low, high = 1.2, 3.0  # an element's seconds at both densities
        share = math.log(density / 0.1) / math.log(10)
        return len(INPUTS) * (low + share * (high - low) + corrected)

    taken_s, total_s = 7.0, alone_s(seen.density, corrected=False)
    if momentum:
        taken_s, total_s = 14.0, total_s + alone_s(seen.corrected, corrected=True)
    longer = taken_s / total_s
    for cost, before in zip(found.compression["strom"], alone, strict=True):
        assert cost.compress_s == before.compress_s
        assert cost.encode_s == pytest.approx(before.encode_s * longer)
        assert cost.decompress_s == pytest.approx(before.decompress_s * longer)
        assert cost.another_s == pytest.approx(longer)
        assert cost.momentum_encode_s == pytest.approx(cost.numel * longer)


def test_costs_of_what_is_not_seen_stay():
    workload = Normal()
    profile = measure(workload, kinds=["topk"], iterations=20)
    seen = with_sent(workload, profile, ["topk", "strom"], LocalTransport())
    assert seen.compression == profile.compression


def test_what_is_sent_above_all_densities_is_compared_with_what_is_sent():
    """An eager method's costs are measured where it sends half of the elements."""
    kinds = ["topk", "strom"]
    profile = measure(Normal(), kinds=kinds, iterations=20)
    most = {kind: max(c.density for c in profile.compression[kind]) for kind in kinds}
    assert most == {"topk": max(DENSITIES), "strom": MOST_SENT}


@pytest.mark.parametrize("slow_rank", [0, 1])
def test_ranks_stop_together_when_the_first_is_late(slow_rank, monkeypatch):
    monkeypatch.setattr(module, "ITERATIONS", (4, 10**6))
    monkeypatch.setattr(module, "SECONDS", 0.2)
    steps = {}

    def profiled(transport):
        class Counted(Normal):
            def loss(self, model, batch):
                steps[transport.rank] = steps.get(transport.rank, 0) + 1
                if transport.rank == slow_rank:
                    time.sleep(0.01)
                return super().loss(model, batch)

        profile = measure(Normal(), transport, iterations=20)
        return with_sent(Counted(), profile, ["strom"], transport).sent

    first, second = run_ranks(2, profiled)
    assert first == second
    assert steps[0] == steps[1] >= 4
