"""The measurement: order and times of the gradients, on one rank and on several."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from comm_plan.errors import InputError, MismatchError
from comm_plan.plans import Profile
from comm_plan.plans.profile import SecondMoments
from comm_plan.profiler import measure
from comm_plan.profiler.assembly import bound_by, in_ready_order, with_findings
from comm_plan.profiler.ranks import order_of_ranks, slowest_of
from comm_plan.profiler.timings import Timings
from comm_plan.profiler.waiting import waiting_s
from comm_plan.tests.support.harness import run_ranks


@dataclass
class Toy:
    """A workload as the profiler sees it."""

    model: nn.Module
    name: str = "toy"
    batch_size: int = 2

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.01)

    def batches(self, rank, world_size, epoch, seed):
        for _ in range(3):
            yield torch.ones(2, 4)

    def loss(self, model, batch):
        return model(batch).sum()


def chain(layers=3):
    return nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(layers)))


def names(profile):
    return [tensor.name for tensor in profile.tensors]


def test_the_last_layer_is_ready_first():
    profile = measure(Toy(chain()), iterations=20, warmup=1)
    assert names(profile) == ["2.weight", "1.weight", "0.weight"]
    assert [t.layer for t in profile.tensors] == ["2", "1", "0"]
    assert profile.environment["order"] == "the same in all 20 iterations"


def test_a_profile_survives_its_file(tmp_path):
    profile = measure(Toy(chain()), iterations=20)
    profile.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == profile
    assert profile.iterations == 20
    assert profile.environment["torch"] == torch.__version__
    assert profile.device.type == "cpu"


def test_all_gradients_are_ready_by_the_end_of_backward():
    profile = measure(Toy(chain(8)), iterations=20)
    assert profile.tensors[0].ready_s >= 0
    assert profile.tensors[-1].ready_s <= profile.backward_s


def test_a_tensor_without_a_gradient_comes_last_and_is_named():
    model = chain()
    model[1].spare = nn.Parameter(torch.ones(3))
    profile = measure(Toy(model), iterations=20)
    assert names(profile)[-1] == "1.spare"
    assert profile.tensors[-1].ready_s == profile.backward_s
    assert profile.environment["unused"] == "1.spare"


def test_what_is_said_of_many_tensors_and_ranks_fits_into_a_document():
    model = chain()
    for number in range(500):
        spare = nn.Parameter(torch.ones(1))
        model[1].register_parameter(f"spare_of_a_long_name_{number:04}", spare)
    profile = measure(Toy(model), iterations=20)
    named = profile.environment["unused"]
    assert named.startswith("1.spare_of_a_long_name_0000, ")
    assert named.endswith(", 1.spare_of_a_long_name_0499")
    first = timings([(0, 1)], [[1.0, 2.0]])
    others = [timings([(1, 0)], [[2.0, 1.0]])] * 5000
    text = order_of_ranks([first, *others])["order_of_ranks"]
    assert text.startswith("rank 0's; it differs on ranks 1, 2, ")
    assert text.endswith(", 4999, 5000")
    said = profile.model_copy(update={"environment": {"order_of_ranks": text}})
    assert Profile.from_json(said.to_json()) == said


def test_frozen_tensors_are_left_out_and_tied_ones_appear_once():
    model = chain()
    model[0].weight.requires_grad_(False)
    model[2].weight = model[1].weight
    assert names(measure(Toy(model), iterations=20)) == ["1.weight"]


def test_no_hook_stays_behind():
    model = chain()
    measure(Toy(model), iterations=20)
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_a_failing_workload_leaves_no_hook_behind():
    class Failing(Toy):
        def loss(self, model, batch):
            raise ValueError

    model = chain()
    with pytest.raises(ValueError):
        measure(Failing(model), iterations=20)
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (chain(), {"iterations": 19}, "iterations is 19, medians need 20"),
        (chain(), {"device": "tpu"}, "'tpu' is unknown"),
        (chain(), {"device": "meta"}, "cannot be profiled"),
        (chain(), {"device": "cuda:99"}, "'cuda:99' is not here"),
        (nn.Flatten(), {}, "no trainable parameters"),
        (
            nn.ParameterList([torch.zeros(4).to(torch.float8_e4m3fn)]),
            {},
            "parameter 0 of model toy is float8_e4m3fn",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(model, options, message):
    with pytest.raises(InputError, match=message):
        measure(Toy(model), **options)


def test_progress_reaches_its_end():
    seen = []
    measure(
        Toy(chain()), iterations=20, warmup=2, progress=lambda *step: seen.append(step)
    )
    assert seen == [(done, 22, "iterations") for done in range(1, 23)]


def timings(orders, ready_s, backward_s=1.0, host_s=1.0, forward_s=1.0):
    rows = len(orders)
    return Timings(
        forward_s=np.broadcast_to(np.array(forward_s), rows),
        backward_s=np.full(rows, backward_s),
        update_s=np.ones(rows),
        total_s=np.full(rows, 3.0),
        host_backward_s=np.full(rows, host_s),
        ready_s=np.array(ready_s),
        orders=tuple(orders),
    )


def parameters(count):
    return {f"p{index}": nn.Parameter(torch.ones(1)) for index in range(count)}


def test_an_order_that_changes_is_decided_by_the_medians():
    found = in_ready_order(
        parameters(2),
        timings([(0, 1), (1, 0), (1, 0)], [[0.1, 0.2], [0.3, 0.2], [0.4, 0.3]]),
        backward_s=1.0,
    )
    assert [(t.name, t.ready_s) for t in found] == [("p1", 0.2), ("p0", 0.3)]


def test_ready_times_never_decrease_in_the_order_of_the_hooks():
    found = in_ready_order(
        parameters(3), timings([(2, 0, 1)], [[0.4, 0.6, 0.5]]), backward_s=1.0
    )
    assert [(t.name, t.ready_s) for t in found] == [
        ("p2", 0.5),
        ("p0", 0.5),
        ("p1", 0.6),
    ]


def test_a_gradient_that_only_other_ranks_have_has_its_place():
    found = in_ready_order(
        parameters(3), timings([(0, 1)], [[0.1, 0.3, 0.2]]), backward_s=1.0
    )
    assert [(t.name, t.ready_s) for t in found] == [
        ("p0", 0.1),
        ("p2", 0.2),
        ("p1", 0.3),
    ]


@pytest.mark.parametrize(("host_s", "who"), [(1.0, "host"), (0.5, "device")])
def test_backward_is_bound_by_who_is_busy_all_the_time(host_s, who):
    assert bound_by(timings([()], [[]], backward_s=1.0, host_s=host_s)) == who


def measure_on(transport, models):
    return measure(Toy(models[transport.rank]), iterations=20, transport=transport)


def test_all_ranks_get_one_profile():
    models = [chain(), chain()]
    first, second = run_ranks(2, measure_on, models)
    assert first == second
    assert first.contention.world_size == 2
    assert first.environment["order_of_ranks"] == "the same on all 2 ranks"


def test_ranks_with_different_models_are_refused():
    with pytest.raises(MismatchError, match="rank 1 measured model"):
        run_ranks(2, measure_on, [chain(2), chain(3)])


def test_a_buffer_that_cannot_follow_rank_0_is_refused_by_name():
    models = [chain(), chain()]
    for model in models:
        model.register_buffer("graph", torch.eye(3).to_sparse())
    with pytest.raises(InputError, match=r"buffer graph is torch\.sparse_coo; ra"):
        run_ranks(2, measure_on, models)


def test_every_time_is_that_of_the_slowest_rank():
    first = timings([(0, 1), (0, 1)], [[1.0, 2.0], [1.0, 2.0]], forward_s=[1.0, 5.0])
    second = timings([(1, 0), (1, 0)], [[4.0, 0.5], [3.0, 0.5]], forward_s=[2.0, 1.0])
    both = slowest_of([first, second])
    assert both.forward_s.tolist() == [1.0, 5.0]
    assert both.ready_s.tolist() == [[4.0, 2.0], [3.0, 2.0]]
    assert both.orders == first.orders
    assert order_of_ranks([first, second]) == {
        "order_of_ranks": "rank 0's; it differs on ranks 1"
    }


def test_a_tensor_that_one_rank_does_not_use_is_ready_when_others_have_it():
    first = timings([(0,)], [[1.0]])
    second = timings([()], [[math.nan]])
    assert slowest_of([first, second]).ready_s.tolist() == [[1.0]]


def test_what_iterations_take_beyond_their_parts_is_waiting():
    each = timings([(0,), (0,)], [[1.0], [1.0]], backward_s=0.5)
    assert waiting_s(each, meeting_s=0.25) == pytest.approx(3.0 - 2.5 - 0.25)
    assert waiting_s(each, meeting_s=9.0) == 0.0


@pytest.mark.parametrize(
    ("layer", "objection"),
    [
        (nn.Identity(), None),
        (nn.BatchNorm1d(4), "layer 1 (batch normalisation) mixes samples"),
    ],
)
def test_a_profile_says_how_second_moments_can_be_had(layer, objection):
    found = measure(Toy(nn.Sequential(nn.Linear(4, 4), layer)), iterations=20)
    assert found.second_moments == SecondMoments(objection=objection)


class Words(Toy):
    """A table of which each batch uses two rows."""

    def batches(self, rank, world_size, epoch, seed):
        for _ in range(3):
            yield torch.tensor([1, 4, 1])


def test_the_rows_of_sparse_gradients_are_counted():
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2))
    profile = measure(Words(model), iterations=20)
    rows = {tensor.name: tensor.rows for tensor in profile.tensors}
    assert rows == {"0.weight": 2, "1.weight": None, "1.bias": None}


def test_rows_are_those_of_the_rank_that_has_most():
    profile = measure(Toy(chain()), iterations=20)
    one, other, _ = names(profile)
    of_ranks = [{one: 2}, {one: 3, other: 1}, {one: 1}]
    found = with_findings(profile, [(SecondMoments(), rows) for rows in of_ranks])
    assert [tensor.rows for tensor in found.tensors] == [3, 1, None]


class InTurns(nn.Module):
    """A layer that every batch needs, and one that every second does."""

    def __init__(self):
        super().__init__()
        self.always, self.sometimes = nn.Linear(4, 4), nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.sometimes(self.always(x)) if self.calls % 2 else self.always(x)


def test_who_gets_no_gradient_in_some_iterations_is_ready_when_backward_ends():
    profile = measure(Toy(InTurns()), iterations=20)
    assert len(profile.tensors) == 4
    assert all(t.ready_s <= profile.backward_s * 1.5 for t in profile.tensors)


def test_a_lazy_module_that_was_never_called_is_refused_by_name():
    with pytest.raises(InputError, match=r"0\.weight .*lazy"):
        measure(Toy(nn.Sequential(nn.LazyLinear(4))), iterations=20)


class Normalised(Toy):
    """Batches that running statistics can be made of."""

    def batches(self, rank, world_size, epoch, seed):
        for _ in range(3):
            yield torch.randn(4, 4)


def test_the_model_and_the_process_are_as_before():
    model = nn.Sequential(chain(), nn.BatchNorm1d(4), nn.Dropout(0.5)).eval()
    model[1].weight.grad = torch.full((4,), 3.0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    measure(Normalised(model), kinds=["topk", "strom"], iterations=20)
    assert torch.rand(1) == expected
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert not any(module.training for module in model.modules())
    assert model[1].weight.grad.tolist() == [3.0] * 4
    assert all(p.grad is None for p in model[0].parameters())
