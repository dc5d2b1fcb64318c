"""LAGS takes the smallest ratios, largest first, that reach the best time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.planner import Settings, joint, lags
from comm_plan.planner.at_ratios import sparse_at
from comm_plan.planner.documents import make_problem
from comm_plan.planner.problem import Solution
from comm_plan.plans import CompressionCost
from comm_plan.plans.compression import Dense, TopK
from comm_plan.tests.support import documents, every_plan

LARGEST = 1000.0


def problem_of(gaps, numels, allreduce, allgather, select=(0.0, 0.0), **changes):
    profile = documents.profile(
        gaps, numels, compression=documents.compression(topk=select),
        layers=changes.pop("layers", None),
    ).model_copy(update={"handoff_s": changes.pop("handoff_s", 0.0)})  # fmt: skip
    network = documents.network(
        4,
        allreduce=documents.fit((0, *allreduce)),
        allgather=documents.fit((0, *allgather)),
    )
    return make_problem(profile, network, Settings(max_ratio=LARGEST, **changes))


def ratios_of(problem, solution):
    """Return [L] one over each tensor's density."""
    each = [
        density
        for start, stop, option in solution.buckets()
        for density in (
            [1.0] * (stop - start)
            if option.compressor.lossless
            else option.spec(start, stop).densities(stop - start)
        )
    ]
    return 1 / np.array(each)


def seconds(problem, solution):
    return problem.simulate(solution).iteration_s


def fastest_s(problem, ratios):
    """Return the best time of dense buckets and sparse ones at ``ratios`` [L]."""
    options = [problem.prices.option(Dense()), sparse_at(problem, ratios)]
    return every_plan.seconds(problem, options).min()


COSTS = st.tuples(st.floats(0, 5e-3), st.floats(1e-9, 1e-7))


@st.composite
def problems(draw):
    tensors = draw(st.sampled_from([1, 2, 2, 3, 3, 3, 4]))
    gaps = draw(st.lists(st.floats(0, 2e-2), min_size=tensors, max_size=tensors))
    numels = draw(
        st.lists(st.integers(1, 1_000_000), min_size=tensors, max_size=tensors)
    )
    select = draw(st.tuples(st.floats(0, 1e-3), st.floats(0, 1e-8)))
    handoff_s = draw(st.sampled_from([0.0, 1e-3]))
    costs = draw(COSTS), draw(COSTS)
    return problem_of(gaps, numels, *costs, select, handoff_s=handoff_s)


@settings(max_examples=2000)
@given(problems())
def test_no_plan_in_time_has_a_smaller_largest_ratio(problem):
    """Against all merges; below a bound on ratios, those at the bound are fastest."""
    solution = lags.solve(problem)
    dense = np.ones(len(problem))
    best_s = min(fastest_s(problem, dense), fastest_s(problem, dense * LARGEST))
    limit_s = best_s * (1 + problem.settings.tolerance)
    resolution_s = 2 * len(problem) * joint.RESOLUTION * limit_s
    assert seconds(problem, solution) <= limit_s + resolution_s
    largest = ratios_of(problem, solution).max()
    for below in (1 - 2 * lags.PRECISION, 0.9, 0.5, 0.1):
        if largest * below >= 1:
            assert fastest_s(problem, dense * largest * below) > limit_s - resolution_s


@settings(max_examples=200)
@given(problems())
def test_no_block_can_have_a_smaller_ratio_in_these_buckets(problem):
    """Lowering one alone breaks the time limit, or matters less than the precision."""
    solution = lags.solve(problem)
    ratios, block = ratios_of(problem, solution), lags.blocks(problem)
    fastest = seconds(problem, lags._fastest(problem))
    limit_s = fastest * (1 + problem.settings.tolerance)

    def at(chosen):
        dense, sparse = problem.prices.option(Dense()), sparse_at(problem, chosen)
        options = (dense if o.compressor.lossless else sparse for o in solution.options)
        return seconds(problem, Solution(solution.stops, tuple(options)))

    resolved_s = at(np.maximum(ratios * (1 - 3 * lags.PRECISION), 1)) - at(ratios)
    for index in np.unique(block[ratios > 1.1]):
        lowered = np.where(block == index, np.maximum(0.9 * ratios, 1), ratios)
        if at(lowered) - at(ratios) > resolved_s:
            assert at(lowered) > limit_s * (1 - 1e-9)


def test_a_fast_network_gets_all_dense():
    problem = problem_of([1e-3] * 20, [10**6] * 20, (1e-6, 1e-12), (1e-6, 1e-12))
    assert ratios_of(problem, lags.solve(problem)).tolist() == [1.0] * 20


def test_without_costs_of_selection_early_layers_keep_more_than_late_ones():
    """The first have a second to hide in, the last only the tolerance."""
    gaps = [0.3, 1.0, 0.3, 0.3]
    problem = problem_of(gaps, [10**6] * 4, (0.0, 3e-6), (0.0, 1e-7))
    ratios = ratios_of(problem, lags.solve(problem))
    assert ratios[0] < ratios[-1] / 2
    assert ratios.max() < LARGEST / 2


def test_a_module_without_backward_time_has_its_neighbours_ratio():
    layers = ["fc", "bn2", "conv2", "bn1", "conv1", "bn0"]
    gaps = [1e-2, 0.0, 1e-2, 1e-6, 1e-2, 1e-6]
    problem = problem_of(gaps, [10**5] * 6, (0, 1e-8), (0, 1e-8), layers=layers)
    assert lags.blocks(problem).tolist() == [0, 1, 1, 2, 2, 2]


def test_densities_lie_between_those_of_a_menu():
    """8 bytes for each of k, all-gathered, must fit in what the tolerance leaves."""
    problem = problem_of([1.0], [10**6], (0, 1.0), (0, 1e-7))
    (ratio,) = ratios_of(problem, lags.solve(problem))
    fastest = 1 + 4 * 8 * 1000 * 1e-7
    k = (fastest * 1.01 - 1) / (4 * 8 * 1e-7)
    assert ratio == pytest.approx(10**6 / k, rel=3 * lags.PRECISION)


def test_k_never_falls_below_the_largest_ratio():
    spec = TopK(density=1 / LARGEST)
    for numel in (1, 999, 1000, 1001, 1499, 1500, 10**6 + 1):
        k = spec.message_nbytes([numel], "allgather") // 8
        assert numel / k <= LARGEST


def test_lags_pays_no_more_for_the_paper_as_printed():
    """On a fast network every layer behind a batch norm would get the largest ratio."""
    gaps, numels = [1e-2, 0.0] * 5, [100, 10**6] * 5
    fast = (1e-6, 1e-12), (1e-6, 1e-12)
    printed = problem_of(gaps, numels, *fast, literal=True)
    assert ratios_of(printed, lags.solve(printed)).max() > 1
    meant = problem_of(gaps, numels, *fast)
    assert ratios_of(meant, lags.solve(meant)).max() == 1


def test_a_larger_bound_on_ratios_is_no_slower_where_selection_scatters():
    """Measured to take longer at the largest ratio, it made the fastest plan slow."""
    costs = tuple(
        CompressionCost(numel=n, density=d, compress_s=n * s, decompress_s=0)
        for n in (1, 1_000_000)
        for d, s in ((0.001, 8e-9), (0.01, 2e-9), (0.1, 3e-9))
    )
    profile = documents.profile([1e-3] * 2, [10**6] * 2, compression={"topk": costs})
    network = documents.network(
        4,
        allreduce=documents.fit((0, 1e-4, 1e-8)),
        allgather=documents.fit((0, 1e-4, 1e-9)),
    )
    iterations_s = []
    for largest in (10, 30, 100, 300, 1000):
        asked = Settings(max_ratio=largest, tolerance=0)
        problem = make_problem(profile, network, asked)
        iterations_s.append(seconds(problem, lags.solve(problem)))
    assert iterations_s == sorted(iterations_s, reverse=True)


def test_no_ratio_below_1_is_asked_for():
    asked = []

    def in_time(ratio):
        asked.append(ratio)
        return False

    assert lags._smallest(in_time, 1.0005) == 1.0005
    assert min(asked) >= 1
