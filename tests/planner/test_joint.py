"""Merging and compression decided together are exact."""

import numpy as np
import pytest

from comm_plan.planner import joint, optimal
from comm_plan.planner.auto import menu
from comm_plan.planner.documents import make_problem
from comm_plan.planner.problem import Settings
from comm_plan.planner.schedule import ROUNDING
from comm_plan.tests.support import every_plan
from comm_plan.tests.support.contention import in_contention

KINDS = ("fp16", "topk", "terngrad")


def random_problem(build, rng, tensors, dtypes=None, min_gain=0.0):
    """Return a problem on which some of the menu pays."""
    costs = {k: (rng.exponential(2e-4), rng.exponential(2e-9)) for k in KINDS}
    profile = build.profile(
        rng.exponential(2e-3, tensors).tolist(),
        np.exp(rng.uniform(3, 14, tensors)).astype(int).tolist(),
        dtypes=dtypes,
        compression=build.compression(**costs),
    )
    sizes = [100, 10**5, 10**7]
    network = build.network(
        4,
        allreduce=build.fit((0, rng.exponential(2e-3), rng.exponential(5e-9))),
        allgather=build.samples(
            *zip(sizes, np.cumsum(rng.exponential(5e-3, 3)).tolist(), strict=True)
        ),
    )
    settings = Settings(allow=("topk", *KINDS), max_ratio=100, min_gain=min_gain)
    return make_problem(profile, network, settings=settings)


@pytest.mark.parametrize("hundred", range(5))
def test_joint_planning_equals_brute_force(build, hundred):
    for seed in range(100 * hundred, 100 * hundred + 100):
        rng = np.random.default_rng(seed)
        tensors = int(rng.integers(1, 5))
        dtypes = rng.choice(["float32", "float64"], tensors, p=[0.8, 0.2]).tolist()
        problem = random_problem(build, rng, tensors, dtypes)
        every = menu(problem)
        picked = rng.choice(len(every) - 1, 3, replace=False) + 1
        options = [every[0], *(every[i] for i in picked)]
        fastest = every_plan.seconds(problem, options).min()
        for limit_s in (float("inf"), fastest * (1 + 1e-9)):
            solution = joint.best(problem, options, limit_s)
            iteration_s = problem.simulate(solution).iteration_s
            assert iteration_s == pytest.approx(fastest, rel=1e-12), seed
        assert joint.best(problem, options, fastest * (1 - 1e-6)) is None, seed


def random_options(problem, rng):
    """Return dense and two others of the menu."""
    every = menu(problem)
    picked = rng.choice(len(every) - 1, 2, replace=False) + 1
    return [every[0], *(every[i] for i in picked)]


@pytest.mark.parametrize("hundred", range(3))
def test_in_contention_one_option_is_merged_as_by_brute_force(build, hundred):
    for seed in range(100 * hundred, 100 * hundred + 100):
        rng = np.random.default_rng(seed)
        problem = random_problem(build, rng, int(rng.integers(1, 5)))
        problem = in_contention(problem, rng)
        for option in random_options(problem, rng):
            if option.allowed.all():
                fastest = every_plan.simulated(problem, [option]).min()
                found = joint.best(problem, [option])
                iteration_s = problem.simulate(found).iteration_s
                assert iteration_s == pytest.approx(fastest, rel=1e-12), seed
                limit_s = fastest * (1 - 1e-6)
                assert joint.best(problem, [option], limit_s) is None, seed


def test_in_contention_several_options_are_planned_about_as_by_brute_force(build):
    longer = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        problem = random_problem(build, rng, int(rng.integers(1, 4)))
        problem = in_contention(problem, rng)
        options = random_options(problem, rng)
        fastest = every_plan.simulated(problem, options).min()
        found = joint.best(problem, options)
        longer.append(problem.simulate(found).iteration_s / fastest - 1)
    assert min(longer) > -1e-12
    assert np.quantile(longer, 0.97) < 1e-3
    assert max(longer) < 0.03


def test_what_is_within_a_limit_is_so_as_it_is_simulated(build):
    for seed in range(50):
        rng = np.random.default_rng(seed)
        problem = in_contention(random_problem(build, rng, 3), rng)
        options = random_options(problem, rng)
        limit_s = problem.simulate(joint.best(problem, options)).iteration_s * 1.001
        found = joint.within(problem, options, limit_s)
        assert problem.simulate(found).iteration_s <= limit_s * (1 + ROUNDING)


@pytest.mark.parametrize("seed", range(10))
def test_with_one_option_joint_planning_is_optimal_merging(build, seed):
    problem = random_problem(build, np.random.default_rng(seed), 25)
    for option in menu(problem):
        if option.allowed.all():
            merged = problem.sent_by(option)
            expected = merged.simulate(optimal.fastest(merged)).iteration_s
            found = joint.best(problem, [option])
            assert problem.simulate(found).iteration_s == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(10))
def test_a_resolution_costs_at_most_so_much_for_each_bucket(build, seed):
    problem = random_problem(build, np.random.default_rng(seed), 20)
    exact = joint.best(problem, menu(problem))
    coarse = joint.best(problem, menu(problem), resolution_s=1e-5)
    loss = problem.simulate(coarse).iteration_s - problem.simulate(exact).iteration_s
    assert -1e-12 <= loss <= 1e-5 * len(exact.stops)


def test_buckets_end_only_at_the_cuts(build):
    problem = random_problem(build, np.random.default_rng(0), 20)
    found = joint.best(problem, menu(problem), cuts=np.array([3, 9, 10, 20]))
    assert set(found.stops) <= {3, 9, 10, 20}


def test_a_tensor_that_no_option_takes_has_no_plan(build):
    rng = np.random.default_rng(0)
    problem = random_problem(build, rng, 2, ["float64", "float32"])
    sparse = next(o for o in menu(problem) if o.compressor.kind == "topk")
    assert joint.best(problem, [sparse]) is None
