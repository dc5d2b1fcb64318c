"""Auto compresses only where it pays, and then as little as it can."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.errors import InputError
from comm_plan.planner import SOLVERS, Settings, auto, joint
from comm_plan.planner.documents import make_problem
from comm_plan.tests.planner.test_joint import random_problem
from comm_plan.tests.support import every_plan
from comm_plan.tests.support.planning import planned

COSTS = {
    "topk": (2e-5, 1e-9),
    "model_topk": (2e-5, 1e-9),
    "terngrad": (2e-5, 1e-9),
    "fp16": (1e-5, 2e-10),
}


def _profile(build, rng, tensors=12):
    return build.profile(
        rng.exponential(2e-3, tensors).tolist(),
        np.exp(rng.uniform(3, 14, tensors)).astype(int).tolist(),
        forward_s=5e-3,
        compression=build.compression(**COSTS),
    )


def _network(build, beta, world_size=8):
    return build.network(
        world_size,
        allreduce=build.fit((0, 1e-4, 1.75 * beta)),
        allgather=build.fit((0, 1e-4, 0.875 * beta)),
    )


def test_on_a_fast_network_auto_does_not_compress(build):
    profile = _profile(build, np.random.default_rng(0))
    assert planned(profile, _network(build, 1e-12), "auto").is_dense


def test_on_a_slow_network_auto_compresses(build):
    profile = _profile(build, np.random.default_rng(0))
    plan = planned(profile, _network(build, 1e-7), "auto")
    assert not plan.is_dense
    assert plan.predicted.iteration_s < 0.7 * plan.predicted.baselines["optimal"]


def test_lossless_auto_is_optimal_merging(build):
    profile = _profile(build, np.random.default_rng(0))
    network = _network(build, 1e-7)
    plan = planned(profile, network, "auto", allow=("dense",))
    assert plan.is_dense
    fastest = plan.predicted.baselines["optimal"]
    assert plan.predicted.iteration_s == pytest.approx(fastest)
    assert plan.buckets == planned(profile, network, "optimal").buckets


def test_what_may_leave_nothing_out_is_not_tried_at_density_1(build):
    """Also where its collective starts faster than an all-reduce."""
    free = dict.fromkeys(("topk", "spardl", "fp16"), (0.0, 0.0))
    profile = build.profile(
        [1e-3] * 4, [1000] * 4, compression=build.compression(**free)
    )
    fast, slow = build.fit((0, 1e-6, 1e-9)), build.fit((0, 5e-3, 1e-9))
    network = build.network(2, allreduce=slow, allgather=fast, gtopk=fast, spardl=fast)
    for asked in (Settings(accuracy="none"), Settings(max_ratio=1, allow=("gtopk",))):
        problem = make_problem(profile, network, asked)
        assert auto.menu(problem) == [problem.prices.dense]
    assert planned(profile, network, "auto", accuracy="none").is_dense


@pytest.mark.parametrize("min_gain", [0.1, 0.5])
def test_what_gains_too_little_is_not_compressed(build, min_gain):
    """Against every plan of the menu."""
    seen = set()
    for seed in range(300):
        rng = np.random.default_rng(seed)
        tensors = int(rng.integers(1, 4))
        problem = random_problem(build, rng, tensors, min_gain=min_gain)
        fastest_s = every_plan.seconds(problem, auto.menu(problem)).min()
        dense = SOLVERS["optimal"](problem.dense)
        enough_s = problem.simulate(dense).iteration_s * (1 - min_gain)
        solution = auto.solve(problem)
        whole = {option.compressor.kind for option in solution.options} == {"dense"}
        if abs(fastest_s / enough_s - 1) > 2 * tensors * joint.RESOLUTION:
            seen.add(whole)
            assert whole == (fastest_s > enough_s), seed
            assert not whole or solution.stops.tolist() == dense.stops.tolist()
    assert seen == {True, False}


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.floats(1e-11, 1e-7))
def test_auto_is_within_tolerance_of_every_solver(build, seed, beta):
    rng = np.random.default_rng(seed)
    problem = make_problem(
        _profile(build, rng, 8),
        _network(build, beta),
        Settings(accuracy="loss", min_gain=0),
    )
    found = problem.simulate(SOLVERS["auto"](problem)).iteration_s
    for name, solver in SOLVERS.items():
        other = problem.simulate(solver(problem)).iteration_s
        assert found <= other * 1.011, name


@pytest.mark.parametrize("seed", range(8))
def test_more_tolerance_never_means_a_higher_ratio(build, seed):
    rng = np.random.default_rng(seed)
    profile, network = _profile(build, rng), _network(build, 3e-8)
    largest = []
    for tolerance in (0.0, 0.02, 0.2, 5.0):
        problem = make_problem(
            profile, network, settings=Settings(tolerance=tolerance, accuracy="loss")
        )
        solution = SOLVERS["auto"](problem)
        largest.append(max(option.ratio for option in solution.options))
    assert largest == sorted(largest, reverse=True)


def test_no_bucket_can_be_compressed_less_within_the_tolerance(build):
    from comm_plan.planner.auto import menu
    from comm_plan.planner.problem import Solution

    problem = make_problem(
        _profile(build, np.random.default_rng(1)), _network(build, 3e-8)
    )
    solution = SOLVERS["auto"](problem)
    fastest_possible = problem.compute.backward_end_s + problem.compute.update_s
    reached = problem.simulate(solution).iteration_s
    assert reached >= fastest_possible
    largest = max(range(len(solution.options)), key=lambda b: solution.options[b].ratio)
    for option in menu(problem):
        if option.ratio < solution.options[largest].ratio:
            options = list(solution.options)
            options[largest] = option
            a, b = solution.starts[largest], solution.stops[largest]
            if option.allowed[a:b].all():
                milder = Solution(solution.stops, tuple(options))
                assert problem.simulate(milder).iteration_s > reached


def test_neighbours_are_merged_where_that_costs_next_to_nothing(build):
    """Only the last message is exposed; whatever starts before it is as good."""
    compression = build.compression(fp16=(1e-6, 0.0))
    profile = build.profile([1e-3] * 20, [10_000] * 20, compression=compression)
    fit = build.fit((0, 1e-6, 1.5e-8))
    network = build.network(8, allreduce=fit, allgather=fit)
    problem = make_problem(profile, network, Settings(min_gain=0))
    fastest, solution = joint.best(problem, auto.menu(problem)), auto.solve(problem)
    assert len(fastest.options) == 20
    assert 1 < len(solution.options) <= 4
    fastest_s = problem.simulate(fastest).iteration_s
    assert problem.simulate(solution).iteration_s <= 1.01 * fastest_s


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.floats(1e-10, 1e-7))
def test_buckets_are_of_one_dtype_and_of_tensors_that_may_travel_so(build, seed, beta):
    rng = np.random.default_rng(seed)
    profile = _profile(build, rng)
    mixed = [
        tensor.model_copy(update={"dtype": rng.choice(["float32", "bfloat16"])})
        for tensor in profile.tensors
    ]
    profile = profile.model_copy(update={"tensors": tuple(mixed)})
    asked = Settings(tolerance=0.2, accuracy="loss")
    problem = make_problem(profile, _network(build, beta), asked)
    for start, stop, option in auto.solve(problem).buckets():
        assert len(set(problem.dtypes[start:stop])) == 1
        assert option.allowed[start:stop].all()


def test_the_largest_ratio_is_kept_to(build):
    profile = _profile(build, np.random.default_rng(0))
    plan = planned(
        profile, _network(build, 1e-6), "auto", max_ratio=50, allow=("topk",)
    )
    densities = {
        bucket.compressor.density
        for bucket in plan.buckets
        if bucket.compressor.kind == "topk"
    }
    assert min(densities) == pytest.approx(1 / 50)


def test_a_method_that_is_asked_for_must_be_measured(build):
    profile = _profile(build, np.random.default_rng(0))
    with pytest.raises(InputError, match="no compression costs for qsgd"):
        planned(profile, _network(build, 1e-8), "auto", allow=("qsgd",))


def test_large_models_are_cut_at_a_bounded_number_of_places(build):
    rng = np.random.default_rng(0)
    profile = _profile(build, rng, 400)
    plan = planned(profile, _network(build, 1e-7), "auto")
    assert len(plan.buckets) <= 128
    assert plan.predicted.iteration_s < 0.7 * plan.predicted.baselines["optimal"]


@pytest.mark.parametrize("hundred", range(20))
def test_auto_has_the_smallest_largest_ratio_of_all_plans_in_time(build, hundred):
    """Against every plan of the menu, to the resolution of the search."""
    for seed in range(100 * hundred, 100 * hundred + 100):
        rng = np.random.default_rng(seed)
        problem = random_problem(build, rng, int(rng.integers(1, 4)))
        options = auto.menu(problem)
        every_s = every_plan.seconds(problem, options)
        which = every_plan.plans(len(problem), len(options))
        ratios = np.array([option.ratio for option in options])
        largest = np.where(which == every_plan.NO_END, 1, ratios[which]).max(axis=1)
        limit_s = every_s.min() * (1 + problem.settings.tolerance)
        slack_s = 2 * len(problem) * joint.RESOLUTION * limit_s
        solution = auto.solve(problem)
        chosen = max(option.ratio for option in solution.options)
        assert problem.simulate(solution).iteration_s <= limit_s + slack_s, seed
        assert chosen <= largest[every_s <= limit_s - slack_s].min(), seed
        assert chosen >= largest[every_s <= limit_s + slack_s].min(), seed
