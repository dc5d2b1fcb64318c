"""The closed forms agree with the tables they come from."""

import math

import pytest

from comm_plan.collectives import allgather, allreduce, costs, gtopk, spardl
from comm_plan.collectives.registry import COLLECTIVES

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
@pytest.mark.parametrize("form", allreduce.ALGORITHMS)
def test_all_reduce_costs_are_those_of_mg_wfbp_table_2(form, world_size):
    terms = allreduce.ALGORITHMS[form](world_size)
    a, b = _mg_wfbp_table_2(form, world_size)
    assert terms.seconds(0, ALPHA_S, BETA, GAMMA) == pytest.approx(a)
    assert terms.seconds(1e6, ALPHA_S, BETA, GAMMA) == pytest.approx(a + b * 1e6)


@pytest.mark.parametrize("world_size", POWERS)
def test_aggregation_costs_are_those_of_gtopk_table_1(world_size):
    m, k, lg = 25_000_000, 25_000, math.log2(world_size)
    dense = allreduce.ring(world_size).seconds(m, ALPHA_S, BETA)
    topk = allgather.doubling(world_size).seconds(2 * k * world_size, ALPHA_S, BETA)
    tree = gtopk.tree(world_size).seconds(2 * k, ALPHA_S, BETA)
    p = world_size
    assert dense == pytest.approx(2 * (p - 1) * ALPHA_S + 2 * (p - 1) / p * m * BETA)
    assert topk == pytest.approx(lg * ALPHA_S + 2 * (p - 1) * k * BETA)
    assert tree == pytest.approx(2 * lg * ALPHA_S + 4 * k * lg * BETA)


@pytest.mark.parametrize(
    ("workers", "alpha_s"), [(2, 9.052e-05), (4, 2.7156e-04), (8, 6.3364e-04)]
)
def test_ring_start_up_matches_the_published_10gbe_cluster(workers, alpha_s):
    terms = allreduce.ring(workers)
    assert terms.seconds(0, 45.26e-6, 8e-10) == pytest.approx(alpha_s)


def test_gtopk_beats_topk_by_all_gather_only_on_many_workers():
    def advantage(world_size):
        topk = allgather.doubling(world_size).volume * world_size
        return topk - gtopk.tree(world_size).volume

    assert advantage(2) < 0 < advantage(32)


@pytest.mark.parametrize("world_size", [2, 3, 4, 7, 16, 64])
def test_spardl_receives_fewer_than_four_k_words_from_any_number_of_ranks(world_size):
    k, rounds = 25_000, math.ceil(math.log2(world_size))
    blocks = spardl.bruck(world_size).seconds(2 * k, ALPHA_S, BETA)
    share = (world_size - 1) / world_size
    assert blocks == pytest.approx(2 * rounds * ALPHA_S + 4 * k * share * BETA)


@pytest.mark.parametrize(("world_size", "rounds"), [(1, 0), (2, 1), (3, 2), (5, 3)])
def test_trees_have_whole_rounds(world_size, rounds):
    assert costs.rounds(world_size) == rounds


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reduce_scatter"])
def test_bandwidth_optimal_forms_move_what_the_bus_factor_counts(name):
    collective = COLLECTIVES[name]
    assert collective.terms(8).volume == pytest.approx(collective.bus_factor(8))


def test_gtopk_has_no_bus_bandwidth():
    assert COLLECTIVES["gtopk"].bus_factor is None
