"""A plan is predicted again as its solver predicted it."""

from __future__ import annotations

import numpy as np
import pytest

from comm_plan.errors import MismatchError
from comm_plan.planner import BASELINES, SOLVERS, Settings, make_problem, solve
from comm_plan.planner.predict import predict
from comm_plan.tests.support import documents

COSTS = {"topk": (1e-5, 1e-9), "model_topk": (1e-5, 1e-9), "fp16": (0.0, 1e-10)}


def model(seed):
    rng = np.random.default_rng(seed)
    return documents.profile(
        rng.exponential(2e-3, 12).tolist(),
        np.exp(rng.uniform(3, 14, 12)).astype(int).tolist(),
        forward_s=5e-3,
        compression=documents.compression(**COSTS),
    )


def network(beta):
    return documents.network(
        8,
        allreduce=documents.fit((0, 1e-4, 1.75 * beta)),
        allgather=documents.fit((0, 1e-4, 0.875 * beta)),
    )


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("beta", [1e-9, 1e-7])
@pytest.mark.parametrize("world_size", [8, 32])
def test_the_same_costs_give_the_same_prediction(solver, beta, world_size):
    settings = Settings(world_size=world_size)
    profile, ranks = model(3), network(beta)
    plan = solve(make_problem(profile, ranks, settings), solver)
    again = predict(plan, profile, ranks, settings)
    assert again.buckets == plan.buckets
    assert again.predicted.iteration_s == pytest.approx(plan.predicted.iteration_s)
    assert again.predicted.timing == plan.predicted.timing


def test_a_slower_network_makes_the_same_plan_slower():
    profile = model(3)
    plan = solve(make_problem(profile, network(1e-8)), "optimal")
    slower = predict(plan, profile, network(1e-7))
    assert slower.buckets == plan.buckets
    assert slower.predicted.iteration_s > 2 * plan.predicted.iteration_s


def test_momentum_is_corrected_as_the_plan_says():
    costs = {
        "topk": tuple(
            cost.model_copy(update={"momentum_s": 1e-3})
            for cost in model(3).compression["topk"]
        )
    }
    profile = model(3).model_copy(update={"compression": costs})
    asked = Settings(compressor="topk", momentum_correction=True)
    plan = solve(make_problem(profile, network(1e-8), asked), "optimal")
    again = predict(plan, profile, network(1e-8))
    assert again.momentum_correction
    assert again.asked == plan.asked
    assert again.predicted.iteration_s == pytest.approx(plan.predicted.iteration_s)
    assert not again.predicted.baselines


def test_baselines_are_what_their_solvers_say_at_these_costs():
    asked = Settings(compressor="topk")
    plan = solve(make_problem(model(3), network(1e-8), asked), "optimal")
    again = predict(plan, model(3), network(1e-7), asked, beside=BASELINES)
    same = solve(make_problem(model(3), network(1e-7), asked), "optimal")
    assert again.predicted.baselines == same.predicted.baselines


def test_a_plan_of_another_model_is_refused():
    plan = solve(make_problem(model(3), network(1e-8)), "optimal")
    other = documents.profile([1e-3], [100])
    with pytest.raises(MismatchError, match="solve with this profile"):
        predict(plan, other, network(1e-8))
