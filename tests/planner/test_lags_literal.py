"""LAGS as printed chooses ratios by Eq. 19; SLGS is what it is compared with."""

import numpy as np
import pytest

from comm_plan.planner import Settings
from comm_plan.planner.documents import make_problem
from comm_plan.planner.lags_literal import RATIOS, ratio_per_tensor
from comm_plan.plans.compression import TopK
from comm_plan.tests.support.planning import planned

NUMEL = 1_000_000


def _problem(build, gaps, beta, max_ratio=1000.0, layers=None):
    profile = build.profile(
        gaps,
        [NUMEL] * len(gaps),
        layers=layers,
        compression=build.compression(topk=(0.0, 0.0), model_topk=(0.0, 0.0)),
    )
    network = build.network(
        4,
        allreduce=build.fit((0, 0.0, 1.5 * beta)),
        allgather=build.fit((0, 0.0, 0.75 * beta)),
    )
    return make_problem(profile, network, settings=Settings(max_ratio=max_ratio))


def test_the_ratio_is_the_smallest_that_hides(build):
    problem = _problem(build, [1e-3, 2e-3, 4e-3], beta=1e-8)
    ratios = ratio_per_tensor(problem)
    # all-gather of 4 x 8 bytes for each k at 0.75e-8 s: k = numel / c
    for ratio, hidden in zip(ratios, [2e-3, 4e-3], strict=False):
        exact = 0.75e-8 * 32 * NUMEL / hidden
        assert exact * (1 - 1e-6) <= ratio <= exact * 1000 ** (1 / (RATIOS - 1)) * 1.001


def test_the_last_ready_layer_has_nothing_to_hide_behind(build):
    ratios = ratio_per_tensor(_problem(build, [1.0, 1.0], beta=1e-12))
    assert ratios.tolist() == [1.0, 1000.0]


def test_the_ratio_never_exceeds_its_upper_bound(build):
    """The paper prints max; c_u is an upper bound."""
    ratios = ratio_per_tensor(_problem(build, [1e-3] * 3, beta=1.0, max_ratio=250.0))
    assert ratios.tolist() == [250.0] * 3


def test_a_layer_that_hides_dense_stays_dense(build):
    problem = _problem(build, [1.0, 1.0, 1.0], beta=1e-9)
    assert ratio_per_tensor(problem)[0] == 1.0
    profile, network = problem.prices.profile, problem.prices.network
    plan = planned(profile, network, "lags", literal=True)
    assert plan.buckets[0].compressor.kind == "dense"
    assert plan.buckets[-1].compressor.kind == "topk"


def test_tensors_of_a_layer_share_its_ratio(build):
    layers = ["fc", "fc", "conv2", "conv2", "conv1"]
    problem = _problem(build, [1e-3, 0, 3e-3, 0, 5e-3], beta=1e-8, layers=layers)
    ratios = ratio_per_tensor(problem)
    assert ratios[0] == ratios[1] != ratios[2] == ratios[3]


def test_each_tensor_keeps_its_own_density_in_a_merged_bucket(build):
    profile = build.profile(
        [1e-4, 1e-3, 1e-3],
        [NUMEL] * 3,
        compression=build.compression(topk=(0.0, 0.0)),
    )
    start_up = build.fit((0, 1e-2, 1e-9))
    network = build.network(4, allreduce=start_up, allgather=start_up)
    (bucket,) = planned(profile, network, "lags", literal=True).buckets
    assert isinstance(bucket.compressor, TopK)
    assert len(bucket.compressor.density) == 3


def test_a_small_dense_tensor_travels_with_its_sparse_neighbours(build):
    """Start-ups of 10 ms: three messages would take longer than one."""
    costs = build.compression(topk=(0.0, 0.0))
    gaps = [1e-3, 1e-3, 2e-2, 1e-3]
    profile = build.profile(gaps, [NUMEL, 10, NUMEL, 10], compression=costs)
    start_up = build.fit((0, 1e-2, 1e-9))
    network = build.network(4, allreduce=start_up, allgather=start_up)
    problem = make_problem(profile, network)
    assert ratio_per_tensor(problem).tolist() == [1000.0, 1.0, 1000.0, 1000.0]
    plan = planned(profile, network, "lags", literal=True)
    densities = {}
    for bucket in plan.buckets:
        if bucket.compressor.kind == "topk":
            pairs = zip(bucket.tensors, bucket.compressor.density, strict=True)
            densities.update(pairs)
    assert densities["layer1.1"] == 1.0
    assert densities["layer0.0"] == pytest.approx(1e-3)


def test_slgs_sends_one_sparse_bucket_after_backward(build):
    problem = _problem(build, [1e-3] * 4, beta=1e-8)
    plan = planned(problem.prices.profile, problem.prices.network, "slgs")
    (bucket,) = plan.buckets
    assert bucket.compressor.density == pytest.approx(1e-3)
    expected = 4e-3 + 0.75e-8 * 32 * 1000 * 4
    assert plan.predicted.iteration_s == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(10))
def test_pipelining_never_loses_to_one_message_at_the_same_ratio(build, seed):
    rng = np.random.default_rng(seed)
    problem = _problem(build, rng.exponential(1e-3, 20).tolist(), beta=1e-8)
    given = problem.prices.profile, problem.prices.network
    whole = planned(*given, "single", compressor="topk", options={"density": 1e-3})
    merged = planned(*given, "optimal", compressor="topk", options={"density": 1e-3})
    assert merged.predicted.iteration_s <= whole.predicted.iteration_s
