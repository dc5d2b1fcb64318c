"""Exact merging is exact: brute force, both forms, every other solver."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.planner import joint, optimal
from comm_plan.planner.curve import CostCurve, affine, from_points
from comm_plan.planner.documents import make_problem
from comm_plan.planner.merging import by_deques, by_search
from comm_plan.planner.problem import Settings
from comm_plan.tests.support import documents, every_plan
from comm_plan.tests.support.contention import in_contention
from comm_plan.tests.support.planning import planned

INSTANCES = 10_000


@cache
def _all_merges(tensors):
    """[2^(L-1), L]: whether a bucket ends after each tensor, for every merge."""
    masks = np.arange(2 ** (tensors - 1))[:, None] >> np.arange(tensors - 1) & 1
    return np.hstack([masks.astype(bool), np.ones((len(masks), 1), dtype=bool)])


def _brute_force(ready, sizes, cost, free=0.0):
    """Return the earliest finish over all contiguous merges, by simulating each."""
    ends = _all_merges(len(ready))
    finish = np.full(len(ends), free)
    held = np.zeros(len(ends))
    for index, at in enumerate(ready):
        held += sizes[index]
        closes = ends[:, index]
        sent = np.maximum(finish, at) + cost(held)
        finish = np.where(closes, sent, finish)
        held = np.where(closes, 0.0, held)
    return finish.min()


def _random_curve(rng):
    kind = rng.integers(4)
    if kind == 0:
        return affine(rng.exponential(2.0) * (rng.random() < 0.9), rng.exponential(0.2))
    if kind == 1:  # a step function: protocol switches, flat in between
        starts = np.concatenate([[0], np.sort(rng.choice(60, 4, replace=False) + 1)])
        return CostCurve(
            starts.astype(float), np.cumsum(rng.exponential(1.0, 5)), np.zeros(5)
        )
    if kind == 2:  # arbitrary monotone, neither concave nor convex
        sizes = np.sort(rng.choice(80, 6, replace=False) + 1)
        return from_points(sizes, np.cumsum(rng.exponential(1.0, 6)))
    starts = np.array([0.0, 7.0, 23.0])  # jumps and slopes
    beta = rng.exponential(0.2, 3)
    alpha, reached = [], rng.exponential()
    for k, start in enumerate(starts):
        alpha.append(reached - beta[k] * start)
        if k < 2:
            reached = alpha[k] + beta[k] * starts[k + 1] + rng.exponential()
    return CostCurve(starts, np.array(alpha), beta)


def _finish_of(stops, ready, sizes, cost):
    finish, start = 0.0, 0
    for stop in stops:
        finish = max(finish, ready[stop - 1]) + float(cost(sizes[start:stop].sum()))
        start = stop
    return finish


@pytest.mark.parametrize("form", ["deques", "search"])
def test_optimal_equals_brute_force_on_random_instances(form):
    rng = np.random.default_rng(20 if form == "deques" else 21)
    for _ in range(INSTANCES):
        tensors = int(rng.integers(1, 8))
        gaps = rng.exponential(1.0, tensors) * (rng.random(tensors) < 0.8)
        ready = np.cumsum(gaps)
        sizes = rng.integers(1, 20, tensors)
        curve = _random_curve(rng)
        sums = np.concatenate([[0.0], np.cumsum(sizes)])
        if form == "deques":
            merges = by_deques(ready, sums, curve, np.zeros(tensors + 1))
        else:
            merges = by_search(ready, lambda i, j, s=sums, c=curve: c(s[j] - s[i]))
        finish = merges.finish[-1]
        assert finish == pytest.approx(_brute_force(ready, sizes, curve), rel=1e-12)
        assert _finish_of(merges.stops(), ready, sizes, curve) == pytest.approx(
            finish, rel=1e-12
        )


@given(st.data())
def test_both_forms_agree_with_decoding_and_a_busy_channel(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    tensors = data.draw(st.integers(1, 60))
    ready = np.cumsum(rng.exponential(1.0, tensors))
    sums = np.concatenate([[0.0], np.cumsum(rng.integers(1, 20, tensors))])
    added = np.concatenate([[0.0], np.cumsum(rng.exponential(0.3, tensors))])
    free = data.draw(st.floats(0, 50))
    curve = _random_curve(rng)

    def seconds(i, j):
        return curve(sums[j] - sums[i]) + added[j] - added[i]

    linear = by_deques(ready, sums, curve, added, free)
    quadratic = by_search(ready, seconds, free)
    for _ in range(data.draw(st.integers(1, 5))):
        assert linear.finish == pytest.approx(quadratic.finish, rel=1e-12)
        linear = by_deques(ready, sums, curve, added, free, linear.finish)
        quadratic = by_search(ready, seconds, free, quadratic.finish)


@pytest.mark.parametrize(
    ("solver", "iteration_s"), [("mg-wfbp", 9.0), ("optimal", 8.0)]
)
def test_greedy_merging_is_beaten_by_hand(build, solver, iteration_s):
    """Backward times (layer 1 to 3) = (2, 1, 1), every size 1, T(n) = 2 + n."""
    profile = build.profile([1, 1, 2], [1, 1, 1])
    network = build.network(allreduce=build.fit((0, 2.0, 0.25)))
    assert planned(profile, network, solver).predicted.iteration_s == iteration_s


PUBLISHED = {  # published whole-collective start-up and per-byte costs, P = 16
    "56GbIB": (2.3583677659915685e-4, 4.0594787739537565e-10),
    "10GbE": (9.080981007148093e-4, 7.395651186836712e-10),
}


@pytest.mark.parametrize("cluster", PUBLISHED)
def test_greedy_merging_loses_on_many_networks_at_published_costs(build, cluster):
    rng = np.random.default_rng(3)
    beaten = 0
    for _ in range(100):
        tensors = int(rng.integers(20, 100))
        profile = build.profile(
            rng.exponential(5e-4, tensors).tolist(),
            rng.integers(100, 600_000, tensors).tolist(),
        )
        network = build.network(16, allreduce=build.fit((0, *PUBLISHED[cluster])))
        plan = planned(profile, network)
        greedy = plan.predicted.baselines["mg-wfbp"]
        beaten += greedy > plan.predicted.iteration_s * (1 + 1e-9)
    assert beaten > 30


@given(st.data())
def test_optimal_never_loses_to_any_dense_solver(build, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    tensors = data.draw(st.integers(1, 40))
    dtypes = rng.choice(["float32", "bfloat16"], tensors, p=[0.8, 0.2]).tolist()
    profile = build.profile(
        rng.exponential(1e-3, tensors).tolist(),
        rng.integers(1, 2_000_000, tensors).tolist(),
        dtypes=dtypes,
    )
    points = np.cumsum(rng.exponential(1e-3, 8))
    sizes = np.sort(rng.choice(10**7, 8, replace=False))
    cost = build.samples(*zip(sizes.tolist(), points.tolist(), strict=True))
    network = build.network(allreduce=cost)
    predicted = planned(profile, network, "optimal", tolerance=0).predicted
    for name, seconds in predicted.baselines.items():
        assert predicted.iteration_s <= seconds * (1 + 1e-12), name


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.01, 0.1]))
def test_optimal_sends_the_fewest_messages_within_the_tolerance(seed, tolerance):
    """Against every merge; of those with as few buckets it is the fastest."""
    rng = np.random.default_rng(seed)
    tensors = int(rng.integers(1, 9))
    profile = documents.profile(
        rng.exponential(1e-3, tensors).tolist(),
        rng.integers(1, 10**6, tensors).tolist(),
        dtypes=rng.choice(["float32", "bfloat16"], tensors, p=[0.8, 0.2]).tolist(),
        update_s=1e-3,
    )
    cost = documents.fit((0, rng.exponential(1e-3), rng.exponential(1e-9)))
    network = documents.network(allreduce=cost)
    problem = make_problem(profile, network, Settings(tolerance=tolerance))
    options = [problem.assigned[0]]
    every_s = every_plan.seconds(problem, options)
    buckets = (every_plan.plans(tensors, 1) != every_plan.NO_END).sum(axis=1)
    in_time = every_s <= every_s.min() * (1 + tolerance + 1e-12)
    solution = optimal.solve(problem)
    assert len(solution.stops) == buckets[in_time].min()
    best_s = every_s[buckets == len(solution.stops)].min()
    assert problem.simulate(solution).iteration_s == pytest.approx(best_s, rel=1e-12)


@pytest.mark.parametrize("hundred", range(2))
def test_in_contention_too_no_plan_is_faster_beyond_the_tolerance(build, hundred):
    for seed in range(100 * hundred, 100 * hundred + 100):
        rng = np.random.default_rng(seed)
        tensors = int(rng.integers(1, 9))
        profile = build.profile(
            rng.exponential(2e-3, tensors).tolist(),
            rng.integers(1, 10**6, tensors).tolist(),
        )
        network = build.network(
            allreduce=build.fit((0, rng.exponential(2e-3), rng.exponential(5e-9)))
        )
        problem = in_contention(make_problem(profile, network), rng)
        every = every_plan.simulated(problem, [problem.prices.dense])
        within = every.min() * (1 + problem.settings.tolerance)
        chosen = problem.simulate(optimal.solve(problem)).iteration_s
        assert chosen <= within * (1 + tensors * joint.RESOLUTION), seed
