"""Sparse gradients are buckets of their own, and take the time of their rows."""

import numpy as np
import pytest

from comm_plan.planner import SOLVERS, Settings, make_problem, solve
from comm_plan.planner.predict import predict
from comm_plan.plans import Contention, Dense, Rates

RANKS, ROWS = 8, 20
ALPHA_S, BETA_S = 1e-3, 1e-8


HALF = Rates(compute=0.5, channel=0.5)


def problem(build, contention=None, **settings):
    numels = [4000, 90_000, 4000, 4000]
    methods = ("dense", "topk", "model_topk")
    costs = build.compression(**dict.fromkeys(methods, (1e-5, 1e-9)))
    profile = build.profile([1e-3] * 4, numels, compression=costs)
    tensors = [*profile.tensors]
    tensors[1] = tensors[1].model_copy(update={"rows": ROWS, "shape": (900, 100)})
    changes = {"tensors": tuple(tensors), "contention": contention}
    profile = profile.model_copy(update=changes)
    line = build.fit((0, ALPHA_S, BETA_S))
    network = build.network(RANKS, allreduce=line, allgather=line)
    return make_problem(profile, network, Settings(**settings))


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_sends_rows_by_themselves(build, solver):
    posed = problem(build)
    plan = solve(posed, solver)
    sparse = posed.prices.profile.tensors[1].name
    (bucket,) = [bucket for bucket in plan.buckets if sparse in bucket.tensors]
    assert bucket.tensors == (sparse,)
    assert (bucket.compressor.kind, bucket.collective) == ("rows", "allgather")


def test_no_compressor_is_forced_upon_rows(build):
    plan = solve(problem(build, compressor="topk"), "optimal")
    assert {b.compressor.kind for b in plan.buckets} >= {"rows", "topk"}


def test_the_time_is_that_of_gathering_lengths_and_rows(build):
    option = problem(build).prices.dense
    lengths, rows = RANKS * 8, RANKS * ROWS * (8 + 4 * 100)
    expected = 2 * ALPHA_S + BETA_S * (lengths + rows)
    assert float(option.communicate_s(1, 2)) == pytest.approx(expected)
    times = option.phases_s(np.array([0, 1]), np.array([1, 2]))
    assert sum(times)[1] == pytest.approx(expected)
    assert times[0].tolist() == pytest.approx([ALPHA_S, 2 * ALPHA_S])
    assert option.compressor == Dense()


@pytest.mark.parametrize("contention", [None, Contention(world_size=2, startup=HALF)])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_solver_prices_rows_as_the_plan_is_priced(build, solver, contention):
    """Not with what copying the whole table costs."""
    posed = problem(build, contention=contention)
    plan = solve(posed, solver)
    again = predict(plan, posed.prices.profile, posed.prices.network)
    first, second = plan.predicted.iteration_s, again.predicted.iteration_s
    assert second == pytest.approx(first)
