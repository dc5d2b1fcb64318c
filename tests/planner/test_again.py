"""Plans solved once more for another number of ranks."""

import pytest

from comm_plan.errors import MismatchError
from comm_plan.planner import Settings, replan
from comm_plan.plans import CollectiveCost, CompressionCost, Fit, Network, Segment
from comm_plan.tests.support.documents import profile_of, tensor
from comm_plan.tests.support.planning import planned

PROFILE = profile_of(
    [tensor("b.weight", (100, 10), 0.01), tensor("a.weight", (100, 40), 0.02)],
    compression={
        "topk": (CompressionCost(numel=1000, compress_s=1e-4, decompress_s=1e-4),)
    },
)


def network(world_size=4):
    fit = Fit(segments=(Segment(from_nbytes=0, alpha_s=1e-3, beta_s_per_byte=1e-7),))
    cost = CollectiveCost(fit=fit)
    costs = {"allreduce": cost, "allgather": cost}
    return Network(backend="gloo", world_size=world_size, collectives=costs)


@pytest.mark.parametrize("solver", ["optimal", "threshold", "lags", "auto"])
def test_it_is_what_the_solver_makes_for_so_many_ranks(solver):
    plan = planned(PROFILE, network(), solver, max_ratio=50)
    settings = {"max_ratio": 50, "world_size": 3}
    again = replan(plan, PROFILE, network(), 3, Settings(max_ratio=50))
    assert again == planned(PROFILE, network(), solver, **settings)
    assert again.world_size == 3


def test_a_forced_compressor_stays_with_its_options():
    forced = {"compressor": "topk", "options": {"density": 0.07}}
    plan = planned(PROFILE, network(), "optimal", **forced)
    again = replan(plan, PROFILE, network(), 2)
    assert {bucket.compressor.density for bucket in again.buckets} == {0.07}
    assert again == planned(PROFILE, network(), "optimal", world_size=2, **forced)


def test_a_profile_of_another_model_is_refused():
    other = profile_of([tensor("c.weight", (7,), 0.01)])
    with pytest.raises(MismatchError, match="the profile that it was solved from"):
        replan(planned(PROFILE, network()), other, network(), 2)
