"""A profile of the steps of a loop that is not comm-plan's."""

import sys
import time
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import comm_plan
from comm_plan.errors import InputError, MismatchError
from comm_plan.planner import make_problem, solve
from comm_plan.plans import Profile
from comm_plan.plans.profile import SecondMoments
from comm_plan.profiler import script, stopwatch
from comm_plan.tests.profiler.test_round_trip import FakeTime
from comm_plan.tests.support import documents
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport

SLEPT_S = 2**-10  # exact in binary, and short where the clock is real


class Slow(nn.Module):
    """Layers whose backward and forward take a known time; dictionaries come and go."""

    def __init__(self, layers=3, repeats=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(layers))
        self.repeats = repeats

    def forward(self, *, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True) if self.repeats else layer(x)
            x = _Sleep.apply(x)
        return {"loss": x.sum(), "outputs": x}


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        time.sleep(SLEPT_S)
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(SLEPT_S)
        return gradient


def steps(model, number, micro_batches=1):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(number):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            model(x=torch.ones(6, 4, requires_grad=True))["loss"].backward()
        optimizer.step()


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the sleeping layers move."""
    fake = FakeTime()
    for module in (stopwatch, script, sys.modules[__name__]):
        monkeypatch.setattr(module, "time", fake)


@pytest.mark.parametrize("repeats", [False, True], ids=["plain", "checkpointed"])
def test_times_are_those_of_the_loop(repeats, tmp_path, clock):
    model = Slow(repeats=repeats)
    path = tmp_path / "profile.json"
    with comm_plan.profile(model, path, compressors=()) as watched:
        steps(model, 20)
    profile = Profile.load(path)
    assert profile == watched.profile
    assert [t.name for t in profile.tensors] == [
        f"layers.{index}.weight" for index in (2, 1, 0)
    ]
    assert profile.forward_s == 3 * SLEPT_S
    assert profile.backward_s == 3 * SLEPT_S
    assert [tensor.ready_s for tensor in profile.tensors] == [
        number * SLEPT_S for number in (1, 2, 3)
    ]
    assert profile.batch_size == 6
    assert profile.iterations == 20 - 3 - 4  # warm-up, handed over
    assert profile.model.name == "Slow"


def test_the_file_is_where_it_was_named_though_the_loop_goes_elsewhere(
    tmp_path, monkeypatch, clock
):
    monkeypatch.chdir(tmp_path)
    model = Slow()
    with comm_plan.profile(model, "profile.json", compressors=()) as watched:
        steps(model, 20)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir("elsewhere")
    assert Profile.load(tmp_path / "profile.json") == watched.profile


def test_only_the_last_backward_of_an_accumulated_step_is_backward(clock):
    model = Slow()
    with comm_plan.profile(model, compressors=()) as watched:
        steps(model, 20, micro_batches=2)
    profile = watched.profile
    assert profile.backward_s == 3 * SLEPT_S
    assert profile.forward_s == 9 * SLEPT_S  # two forwards, one backward
    assert profile.batch_size == 12


class TwoHeads(nn.Module):
    """A body, and two heads with a loss each."""

    def __init__(self):
        super().__init__()
        self.body, self.first, self.second = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        x = self.body(x)
        return self.first(x).sum(), self.second(x).sum()


def test_of_two_backwards_the_first_ones_gradients_are_there_when_the_last_begins():
    model = TwoHeads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with comm_plan.profile(model, compressors=()) as watched:
        for _ in range(20):
            optimizer.zero_grad()
            first, second = model(torch.ones(6, 4))
            first.backward(retain_graph=True)
            second.backward()
            optimizer.step()
    ready_s = {tensor.name: tensor.ready_s for tensor in watched.profile.tensors}
    assert ready_s["first.weight"] == ready_s["first.bias"] == 0
    assert 0 < ready_s["second.weight"] <= ready_s["body.weight"]
    assert "unused" not in watched.profile.environment


def test_a_gradient_that_was_thrown_away_is_none_of_the_step():
    model = TwoHeads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with comm_plan.profile(model, compressors=()) as watched:
        for _ in range(20):
            first, _ = model(torch.ones(6, 4))
            first.backward()
            optimizer.zero_grad()  # such as a loss that was inf
            _, second = model(torch.ones(6, 4))
            second.backward()
            optimizer.step()
    assert watched.profile.environment["unused"] == "first.weight, first.bias"
    assert watched.profile.tensors[-1].ready_s == watched.profile.backward_s


def test_compressors_are_costed():
    model = Slow()
    with comm_plan.profile(model, compressors=("fp16",)) as watched:
        steps(model, 20)
    assert set(watched.profile.compression) == {"fp16"}


def test_no_hook_is_left():
    model = Slow()
    with comm_plan.profile(model, compressors=()) as watched:
        steps(model, 20)
    before = watched.profile
    steps(model, 5)
    assert watched.profile is before
    assert not model._forward_pre_hooks
    assert not model._forward_hooks


def test_too_few_steps_are_refused():
    model = Slow()
    with (
        pytest.raises(InputError, match="2 training steps were run in the block"),
        comm_plan.profile(model, compressors=()),
    ):
        steps(model, 2)


def test_an_error_in_the_block_stays_what_it_is(tmp_path):
    model = Slow()
    path = tmp_path / "profile.json"
    with pytest.raises(KeyError), comm_plan.profile(model, path, compressors=()):
        raise KeyError
    assert not path.exists()


def test_a_model_without_parameters_is_refused():
    with pytest.raises(InputError, match="no trainable parameters"):
        comm_plan.profile(nn.ReLU())


def test_a_parameter_without_elements_is_refused_by_name():
    model = nn.ModuleDict({"full": nn.Linear(2, 2), "empty": nn.Embedding(0, 2)})
    with (
        pytest.raises(InputError, match=r"empty\.weight .* has no elements: freeze it"),
        comm_plan.profile(model),
    ):
        pass


def test_a_sparse_parameter_is_refused_by_name():
    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(torch.eye(2).to_sparse())
    with pytest.raises(InputError, match=r"weight .* is torch\.sparse_coo; .*make it"):
        comm_plan.profile(model)


def test_a_model_may_be_copied_and_saved_meanwhile(tmp_path):
    model = Slow()
    with comm_plan.profile(model, compressors=()) as run:
        steps(model, 5)
        copied = deepcopy(model)
        torch.save(model, tmp_path / "model.pt")
        saved = torch.load(tmp_path / "model.pt", weights_only=False)
        for other in (copied, saved):
            steps(other, 3)
        steps(model, 20)
    assert run.profile.iterations is not None
    assert saved.layers[0].weight.equal(copied.layers[0].weight)


def test_a_wrapped_model_is_refused(one_rank_group):
    with pytest.raises(InputError, match="before it is wrapped"):
        comm_plan.profile(DistributedDataParallel(Slow()))


def test_ranks_get_one_profile_of_the_slowest():
    def of(transport):
        model = Slow()
        with comm_plan.profile(model, transport=transport, compressors=()) as watched:
            transport.barrier()  # ranks are threads here, and share PyTorch's hooks
            steps(model, 20 + transport.rank)
            transport.barrier()
        return watched.profile

    first, second = run_ranks(2, of)
    assert first == second
    assert first.iterations == 13


def test_ranks_with_different_models_are_refused():
    def of(transport):
        with pytest.raises(MismatchError):
            comm_plan.profile(Slow(2 + transport.rank), transport=transport)

    run_ranks(2, of)


def test_a_plan_can_be_made_of_it_and_be_trained_by(tmp_path):
    from comm_plan.planner import make_problem, solve
    from comm_plan.plans import CollectiveCost, Network

    model = Slow()
    with comm_plan.profile(model, compressors=()) as watched:
        steps(model, 20)
    cost = CollectiveCost.affine(1e-3, 1e-9)
    network = Network(backend="gloo", world_size=1, collectives={"allreduce": cost})
    plan = solve(make_problem(watched.profile, network), "optimal")
    with comm_plan.parallelize(model, plan, transport=LocalTransport()) as engine:
        steps(model, 2)
        assert engine.step == 2


def test_the_first_step_shows_how_second_moments_can_be_had():
    model = Slow()
    with comm_plan.profile(model, compressors=()) as watched:
        steps(model, 20)
    assert watched.profile.second_moments == SecondMoments(micro_batches=3)
    with comm_plan.profile(Twice(model), compressors=()) as watched:
        steps(watched._model, 20)
    found = watched.profile.second_moments
    assert found.objection == (
        "layer slow.layers.2 (Linear) is used more than once in a backward pass"
    )


class Twice(nn.Module):
    """Calls its layers twice."""

    def __init__(self, slow):
        super().__init__()
        self.slow = slow

    def forward(self, *, x):
        return self.slow(x=self.slow(x=x)["outputs"])


def test_a_backward_that_failed_is_none_of_the_steps():
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def fail(gradient):
        raise ArithmeticError

    with comm_plan.profile(model, compressors=()) as watched:
        steps(model, 5)
        hook = model.layers[1].weight.register_hook(fail)
        with pytest.raises(ArithmeticError):
            steps(model, 1)
        hook.remove()
        optimizer.zero_grad()
        steps(model, 15)
    assert watched.profile.iterations == 20 - 3 - 4  # warm-up, and handed over
    assert watched.profile.batch_size == 6


def test_a_layer_may_be_frozen_in_the_block():
    model = Slow()
    with comm_plan.profile(model, compressors=()) as watched:
        steps(model, 14)
        model.layers[0].weight.requires_grad_(False)
        steps(model, 6)
    assert len(watched.profile.tensors) == 3


def test_communication_is_no_part_of_a_profile():
    model = Slow()
    network = documents.network(1, allreduce=documents.fit((0, 1e-4, 1e-9)))
    with comm_plan.profile(model, compressors=()) as watched:
        steps(model, 17)
    plan = solve(make_problem(watched.profile, network))
    engine = comm_plan.parallelize(model, plan, transport=LocalTransport())
    with pytest.raises(InputError, match="close the engine first"):
        comm_plan.profile(model)
    engine.close()
    comm_plan.profile(model)
