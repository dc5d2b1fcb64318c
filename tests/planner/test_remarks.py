"""What is said beside a prediction follows from the documents."""

from __future__ import annotations

import pytest

from comm_plan.planner import Settings, make_problem, summarise
from comm_plan.planner.remarks import beyond_samples
from comm_plan.plans import CompressionCost, Contention, Sample, Spread
from comm_plan.plans.compression import Strom
from comm_plan.plans.profile import Sent
from comm_plan.tests.support import documents

SAMPLES = tuple(
    Sample(nbytes=n, median_s=s, min_s=s, p95_s=2 * s, iterations=9)
    for n, s in ((512, 1e-3), (100_000, 2e-3))
)


def said(numel=1000, world_size=4, **profile):
    network = documents.network(
        4,
        allreduce=documents.fit((0, 1e-3, 1e-8)).model_copy(
            update={"samples": SAMPLES}
        ),
    )
    measured = documents.profile([0.01, 0.02], [numel, numel]).model_copy(
        update=profile
    )
    settings = Settings(world_size=world_size)
    summary = summarise(make_problem(measured, network, settings), ["single"])
    return " | ".join(summary.remarks(summary.plan("single")))


ALONE = {"iterations": 30, "contention": Contention(world_size=1)}


@pytest.mark.parametrize(
    ("profile", "world_size", "expected"),
    [
        (ALONE, 4, True),
        (ALONE, 1, False),
        ({"iterations": 30}, 4, True),
        ({"iterations": 30, "contention": Contention(world_size=2)}, 4, False),
        ({}, 4, False),  # its times were not measured at all
    ],
)
def test_a_profile_of_one_rank_is_named(profile, world_size, expected):
    text = said(world_size=world_size, **profile)
    assert ("as it is of one rank" in text) == expected


@pytest.mark.parametrize(
    ("stolen", "expected"), [(None, False), (0.01, False), (0.13, True)]
)
def test_time_that_other_machines_took_is_named(stolen, expected):
    text = said(stolen=stolen)
    assert ("13.0 % of the processors' time went to others" in text) == expected


@pytest.mark.parametrize(("numel", "expected"), [(20_000, False), (50_000, True)])
def test_messages_far_longer_than_any_that_was_measured_are_named(numel, expected):
    text = said(numel)
    assert ("measured up to 100 kB, the longest message has 400 kB" in text) == expected


def test_one_rank_sends_no_message():
    assert "message" not in said(numel=50_000, world_size=1)
    _, text = of_strom(world_size=1)
    assert "strom sends" not in text


def test_of_several_plans_the_longest_message_counts():
    cost = documents.fit((0, 1e-3, 1e-8)).model_copy(update={"samples": SAMPLES})
    network = documents.network(4, allreduce=cost)
    solved = []
    for numel, ranks in ((50_000, 2), (80_000, 8), (60_000, 4), (90_000, 1)):
        measured = documents.profile([0.01], [numel])
        problem = make_problem(measured, network, Settings(world_size=ranks))
        solved.append((problem, summarise(problem, ["single"]).row("single").solution))
    (text,) = beyond_samples(network, solved)
    assert "the longest message has 320 kB" in text


@pytest.mark.parametrize(("rows", "expected"), [(100, False), (500, True)])
def test_of_an_embedding_the_rows_of_all_ranks_are_sent(rows, expected):
    table = documents.tensor("table", (100_000, 98)).model_copy(update={"rows": rows})
    cost = documents.fit((0, 1e-3, 1e-8)).model_copy(update={"samples": SAMPLES})
    network = documents.network(4, allreduce=cost, allgather=cost)
    problem = make_problem(documents.profile_of([table]), network)
    summary = summarise(problem, ["single"])
    text = " | ".join(summary.remarks(summary.plan("single")))
    assert "allreduce was measured" not in text
    said = "allgather was measured up to 100 kB, the longest message has 800 kB"
    assert (said in text) == expected


def test_how_far_the_measurements_scatter_is_told():
    spread = Spread(p05_s=0.9, p95_s=1.1)
    for world_size, tried in ((4, True), (1, False)):  # tune wants several ranks
        text = said(
            world_size=world_size, forward_spread=spread, backward_spread=spread
        )
        assert "measurements scatter by" in text
        assert ("tune tries plans" in text) == tried


def of_strom(density=None, world_size=4, **options):
    """Return what is said of Strom on a model that was seen to send ``density``."""
    cost = documents.fit((0, 1e-3, 1e-8)).model_copy(update={"samples": SAMPLES})
    network = documents.network(4, allreduce=cost, allgather=cost)
    costs = (CompressionCost(numel=10_000, compress_s=1e-4, decompress_s=1e-4),)
    measured = documents.profile([0.01], [10_000], compression={"strom": costs})
    if density is not None:
        sent = {"strom": Sent(density=density)}
        measured = measured.model_copy(update={"sent": sent})
    settings = Settings(world_size=world_size, compressor="strom", options=options)
    summary = summarise(make_problem(measured, network, settings), ["single"])
    plan = summary.plan("single")
    (bucket,) = plan.buckets
    return bucket.compressor.expected_density, " | ".join(summary.remarks(plan))


def test_what_the_model_was_seen_to_send_is_expected():
    density, text = of_strom(0.25)
    assert density == 0.25
    assert "25.0 % of the elements, as when the model was profiled" in text


def test_what_was_not_seen_is_said_to_be_a_guess():
    for found in (of_strom(), of_strom(0.25, tau=3.0)):
        density, text = found
        assert density == Strom.example().expected_density
        assert "1.00 % of the elements is a guess" in text


def test_what_is_told_is_expected():
    density, text = of_strom(0.25, expected_density=0.5)
    assert density == 0.5
    assert "of the elements" not in text
