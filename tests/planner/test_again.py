"""Plans solved once more for another number of ranks."""

import pytest

from comm_plan.errors import InputError, MismatchError
from comm_plan.planner import replan
from comm_plan.plans import (
    CollectiveCost,
    CompressionCost,
    Network,
    Plan,
)
from comm_plan.tests.support.documents import profile_of, tensor
from comm_plan.tests.support.planning import planned

PROFILE = profile_of(
    [tensor("b.weight", (100, 10), 0.01), tensor("a.weight", (100, 40), 0.02)],
    compression={
        "topk": (CompressionCost(numel=1000, compress_s=1e-4, decompress_s=1e-4),)
    },
)


def network(world_size=4):
    cost = CollectiveCost.affine(1e-3, 1e-7)
    costs = {"allreduce": cost, "allgather": cost}
    return Network(backend="gloo", world_size=world_size, collectives=costs)


@pytest.mark.parametrize("solver", ["optimal", "threshold", "lags", "auto"])
def test_it_is_what_the_solver_makes_for_so_many_ranks(solver):
    plan = planned(PROFILE, network(), solver, max_ratio=50)
    again = replan(plan, PROFILE, network(), 3)
    assert again == planned(PROFILE, network(), solver, max_ratio=50, world_size=3)
    assert again.world_size == 3


ASKED = [
    ("optimal", {"compressor": "topk", "options": {"density": 0.07}}),
    ("optimal", {"compressor": "topk", "momentum_correction": True}),
    ("threshold", {"caps_nbytes": (4096, 8192)}),
    ("lags", {"dense_layers": ("a*",), "max_ratio": 30.0}),
    ("lags", {"literal": True, "tolerance": 0.1}),
    ("auto", {"allow": ("topk",), "algorithm": "ring"}),
]


@pytest.mark.parametrize(("solver", "asked"), ASKED)
def test_it_is_asked_for_the_same_again(solver, asked):
    plan = Plan.from_json(planned(PROFILE, network(), solver, **asked).to_json())
    again = replan(plan, PROFILE, network(), 2)
    assert again == planned(PROFILE, network(), solver, world_size=2, **asked)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"tolerance": -1}, "tolerance -1.* is below 0"),
        ({"tolerances": 1}, "asked for: tolerances"),
        ({"caps_nbytes": "many"}, "asked for: caps_nbytes"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(asked, message):
    plan = planned(PROFILE, network()).model_copy(update={"asked": asked})
    with pytest.raises(InputError, match=message):
        replan(plan, PROFILE, network(), 2)


def test_a_profile_of_another_model_is_refused():
    other = profile_of([tensor("c.weight", (7,), 0.01)])
    with pytest.raises(MismatchError, match="the profile that it was solved from"):
        replan(planned(PROFILE, network()), other, network(), 2)
