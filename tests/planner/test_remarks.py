"""What is said beside a prediction follows from the documents."""

from __future__ import annotations

import pytest

from comm_plan.planner import Settings, make_problem, summarise
from comm_plan.plans import Contention, Sample, Spread
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
    assert ("the profile is of one rank" in text) == expected


@pytest.mark.parametrize(
    ("stolen", "expected"), [(None, False), (0.01, False), (0.13, True)]
)
def test_time_that_other_machines_took_is_named(stolen, expected):
    text = said(stolen=stolen)
    assert ("13.0 % of the processors' time went to others" in text) == expected


@pytest.mark.parametrize(("numel", "expected"), [(20_000, False), (50_000, True)])
def test_messages_far_longer_than_any_that_was_measured_are_named(numel, expected):
    text = said(numel)
    assert ("measured up to 100 kB, the plan sends 400 kB" in text) == expected


@pytest.mark.parametrize(("rows", "expected"), [(100, False), (500, True)])
def test_of_an_embedding_the_rows_of_all_ranks_are_sent(rows, expected):
    table = documents.tensor("table", (100_000, 98)).model_copy(update={"rows": rows})
    cost = documents.fit((0, 1e-3, 1e-8)).model_copy(update={"samples": SAMPLES})
    network = documents.network(4, allreduce=cost, allgather=cost)
    problem = make_problem(documents.profile_of([table]), network)
    summary = summarise(problem, ["single"])
    text = " | ".join(summary.remarks(summary.plan("single")))
    assert "allreduce was measured" not in text
    said = "allgather was measured up to 100 kB, the plan sends 800 kB at once"
    assert (said in text) == expected


def test_how_far_the_measurements_scatter_is_told():
    spread = Spread(p05_s=0.9, p95_s=1.1)
    text = said(forward_spread=spread, backward_spread=spread)
    assert "predictions are within about" in text
