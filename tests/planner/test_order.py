"""Gradients are sent as they get ready, those of a dtype together."""

import pytest

from comm_plan.planner import SOLVERS, make_problem, solve
from comm_plan.planner.order import sending_order
from comm_plan.planner.predict import predict
from comm_plan.plans.compression import method

BLOCKS = 12


def alternating(build, **changes):
    """Blocks of a large bfloat16 weight and a small float32 norm."""
    numels = [1_000_000, 1000] * BLOCKS
    dtypes = ["bfloat16", "float32"] * BLOCKS
    return build.profile([1e-3] * len(numels), numels, dtypes=dtypes, **changes)


def test_one_dtype_is_sent_in_ready_order(build):
    tensors = build.profile([1e-3] * 5, [10, 20, 30, 40, 50]).tensors
    assert sending_order(tensors) == tensors


def test_a_dtype_that_comes_in_one_stretch_stays_where_it_is(build):
    dtypes = ["float32", "bfloat16", "bfloat16"]
    tensors = build.profile([1e-3] * 3, [10, 20, 30], dtypes=dtypes).tensors
    assert sending_order(tensors) == tensors


def test_what_alternates_takes_its_place_when_a_bucket_is_full(build):
    tensors = alternating(build).tensors
    first, *weights = tensors[0::2]
    assert sending_order(tensors) == (first, *weights, *tensors[1::2])


def test_a_sparse_gradient_stays_between_those_before_and_after_it(build):
    tensors = list(alternating(build).tensors)
    tensors[6] = tensors[6].model_copy(update={"rows": 5})
    order = sending_order(tensors)
    assert order[6] == tensors[6]
    assert set(order[:6]) == set(tensors[:6])


@pytest.mark.parametrize("solver", SOLVERS)
def test_dtypes_that_alternate_share_messages(build, solver):
    """And are ready when the last of them is; the plan names the profile as given."""
    costs = build.compression(topk=(1e-6, 1e-10), model_topk=(1e-6, 1e-10))
    profile = alternating(build, compression=costs)
    line = build.fit((0, 1e-3, 1e-9))
    network = build.network(4, allreduce=line, allgather=line)
    problem = make_problem(profile, network)
    plan = solve(problem, solver)
    if solver != "wfbp":
        assert len(plan.buckets) < BLOCKS
    norms = plan.predicted.timing.buckets[-1]
    assert norms.ready_s >= problem.compute.backward_start_s + profile.backward_s
    assert plan.inputs.profile_sha256 == profile.sha256
    again = predict(plan, profile, network).predicted
    assert again.iteration_s == pytest.approx(plan.predicted.iteration_s)


def test_what_is_ready_first_is_the_last_layer_also_where_it_is_sent_last(build):
    """Which some methods leave dense."""
    dtypes = ["float32"] + ["bfloat16", "float32"] * BLOCKS
    numels = [1000] + [1_000_000, 1000] * BLOCKS
    costs = build.compression(terngrad=(1e-6, 1e-9))
    times = [1e-3] * len(numels)
    profile = build.profile(times, numels, dtypes=dtypes, compression=costs)
    line = build.fit((0, 1e-3, 1e-9))
    network = build.network(4, allreduce=line, allgather=line)
    problem = make_problem(profile, network)
    kept = problem.prices.allowed(method("terngrad")[0])
    names = [tensor.name for tensor in problem.prices.profile.tensors]
    dense = {name for name, sent in zip(names, kept, strict=True) if not sent}
    assert profile.tensors[0].name in dense
