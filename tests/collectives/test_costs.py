"""The closed forms agree with the tables they come from."""

import math

import pytest

from comm_plan.collectives import costs
from comm_plan.errors import InputError
from comm_plan.plans.network import COLLECTIVES

ALPHA_S, BETA, GAMMA = 4.5e-5, 8e-10, 3e-11
POWERS = [2, 4, 8, 16, 32, 64]


def _mg_wfbp_table_2(form: str, n: int) -> tuple[float, float]:
    """Start-up a and slope b as printed in MG-WFBP, Table II."""
    lg = math.log2(n)
    return {
        "binary_tree": (2 * ALPHA_S * lg, (2 * BETA + GAMMA) * lg),
        "recursive_doubling": (ALPHA_S * lg, (BETA + GAMMA) * lg),
        "halving_doubling": (
            2 * ALPHA_S * lg,
            2 * BETA - (2 * BETA + GAMMA) / n + GAMMA,
        ),
        "ring": (2 * (n - 1) * ALPHA_S, 2 * (n - 1) / n * BETA + (n - 1) / n * GAMMA),
    }[form]


@pytest.mark.parametrize("world_size", POWERS)
@pytest.mark.parametrize(
    "form", ["binary_tree", "recursive_doubling", "halving_doubling", "ring"]
)
def test_all_reduce_costs_are_those_of_mg_wfbp_table_2(form, world_size):
    terms = getattr(costs, f"allreduce_{form}")(world_size)
    a, b = _mg_wfbp_table_2(form, world_size)
    assert terms.seconds(0, ALPHA_S, BETA, GAMMA) == pytest.approx(a)
    assert terms.seconds(1e6, ALPHA_S, BETA, GAMMA) == pytest.approx(a + b * 1e6)


@pytest.mark.parametrize("world_size", POWERS)
def test_aggregation_costs_are_those_of_gtopk_table_1(world_size):
    m, k, lg = 25_000_000, 25_000, math.log2(world_size)
    dense = costs.allreduce_ring(world_size).seconds(m, ALPHA_S, BETA)
    topk = costs.allgather_doubling(world_size).seconds(
        2 * k * world_size, ALPHA_S, BETA
    )
    gtopk = costs.gtopk_tree(world_size).seconds(2 * k, ALPHA_S, BETA)
    p = world_size
    assert dense == pytest.approx(2 * (p - 1) * ALPHA_S + 2 * (p - 1) / p * m * BETA)
    assert topk == pytest.approx(lg * ALPHA_S + 2 * (p - 1) * k * BETA)
    assert gtopk == pytest.approx(2 * lg * ALPHA_S + 4 * k * lg * BETA)


@pytest.mark.parametrize(
    ("workers", "alpha_s"), [(2, 9.052e-05), (4, 2.7156e-04), (8, 6.3364e-04)]
)
def test_ring_start_up_matches_the_published_10gbe_cluster(workers, alpha_s):
    terms = costs.allreduce_ring(workers)
    assert terms.seconds(0, 45.26e-6, 8e-10) == pytest.approx(alpha_s)


def test_gtopk_beats_topk_by_all_gather_only_on_many_workers():
    def advantage(world_size):
        topk = costs.allgather_doubling(world_size).volume * world_size
        return topk - costs.gtopk_tree(world_size).volume

    assert advantage(2) < 0 < advantage(32)


def test_two_levels_of_one_rank_are_a_plain_ring():
    inside, between = costs.allreduce_two_levels(8, 1)
    assert inside == costs.Terms(0, 0, 0)
    assert between == costs.allreduce_ring(8)


def test_two_levels_send_a_node_th_of_the_volume_between_nodes():
    _, between = costs.allreduce_two_levels(16, 4)
    assert between.volume == pytest.approx(costs.allreduce_ring(4).volume / 4)


def test_nodes_that_ranks_do_not_fill_are_refused():
    with pytest.raises(InputError, match="6 ranks do not fill nodes of 4"):
        costs.allreduce_two_levels(6, 4)


@pytest.mark.parametrize(("world_size", "rounds"), [(1, 0), (2, 1), (3, 2), (5, 3)])
def test_trees_have_whole_rounds(world_size, rounds):
    assert costs.rounds(world_size) == rounds


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_of_a_network_document_has_a_closed_form(collective):
    form = costs.CLOSED_FORMS[collective]
    assert form(8).messages > 0
    if collective != "point_to_point":
        assert form(1).seconds(1e9, ALPHA_S, BETA, GAMMA) == 0


@pytest.mark.parametrize("collective", [c for c in COLLECTIVES if c != "gtopk"])
def test_bandwidth_optimal_forms_move_what_the_bus_factor_counts(collective):
    factor = costs.bus_factor(collective, 8)
    if collective == "broadcast":
        assert factor == 1.0
    else:
        assert costs.CLOSED_FORMS[collective](8).volume == pytest.approx(factor)


def test_gtopk_has_no_bus_bandwidth():
    assert costs.bus_factor("gtopk", 8) is None
