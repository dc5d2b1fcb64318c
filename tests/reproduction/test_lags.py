"""Claims about LAGS's Table 2 by the schedule model."""

import pytest

from comm_plan.benchmarks.predictions_tables import result
from comm_plan.planner import find_solver
from comm_plan.plans import TopK
from comm_plan.reproduction.lags import (
    MODELS,
    implied_s,
    predicted,
    printed,
    problem,
    reached,
)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("solver", ["wfbp", "single", "threshold", "mg-wfbp"])
def test_no_other_merging_of_every_layers_top_thousandth_is_faster(name, solver):
    dense = problem(name)
    spec = TopK(density=1 / printed()["compression_ratio"])
    sparse = dense.sent_by(dense.prices.option(spec))
    other = sparse.simulate(find_solver(solver)(sparse))
    assert predicted(name)["lags"] <= other.iteration_s * (1 + 1e-12)


def test_what_the_page_says_of_the_messages_that_s_max_implies():
    numel = printed()["parameters"]
    vgg, resnet, inception = MODELS
    assert numel[resnet] < numel[vgg] / 5
    assert numel[inception] < numel[vgg] / 3
    assert 0.8 < implied_s(resnet) / implied_s(vgg) < 1
    assert 1.8 < implied_s(inception) / implied_s(vgg) < 2


def test_the_page_does_not_hide_that_newer_code_has_lags_ahead():
    lines = result("predictions-replay-4x1gbit").lines
    assert lines["lags, as printed"].measured_s < lines["slgs"].measured_s
    assert "newer code LAGS is ahead of SLGS at 1 Gbit/s" in reached().text
