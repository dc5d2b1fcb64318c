"""Tables show what the document says."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from comm_plan.collectives.bandwidth import algbw, busbw
from comm_plan.plans import CollectiveCost, Fit, Network, Sample, Segment
from comm_plan.report.network import overview, rows, table

FIT = Fit(
    segments=[Segment(from_nbytes=0, alpha_s=1e-3, beta_s_per_byte=1e-8)],
    median_error=0.03,
)


def network(name, fit=FIT, samples=True):
    sample = Sample(nbytes=1 << 20, median_s=1e-2, min_s=9e-3, p95_s=2e-2, iterations=5)
    cost = CollectiveCost(samples=[sample] if samples else [], fit=fit)
    return Network(backend="gloo", world_size=4, collectives={name: cost})


def shown(document, name, width=120):
    console = Console(file=io.StringIO(), width=width)
    console.print(table(document, name))
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("allreduce", 1.5),
        ("allgather", 0.75),
        ("reduce_scatter", 0.75),
        ("broadcast", 1.0),
        ("point_to_point", 1.0),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(collective, factor):
    assert algbw(4e9, 2.0) == 2e9
    assert busbw(collective, 4, 4e9, 2.0) == pytest.approx(factor * 2e9)


def test_gtopk_has_no_bus_bandwidth():
    assert busbw("gtopk", 4, 4e9, 2.0) is None


def test_a_row_holds_bandwidths_and_the_fit():
    (row,) = rows(network("allreduce"), "allreduce")
    assert row.algbw == pytest.approx((1 << 20) / 1e-2)
    assert row.busbw == pytest.approx(1.5 * row.algbw)
    assert row.fit_s == pytest.approx(1e-3 + 1e-8 * (1 << 20))
    assert row.fit_error == pytest.approx(row.fit_s / 1e-2 - 1)


def test_the_table_names_sizes_times_and_the_fit():
    text = shown(network("allreduce"), "allreduce")
    for expected in ("1 MiB", "10.0 ms", "9.00 ms", "20.0 ms", "105 MB/s", "+15%"):
        assert expected in text
    assert "1.00 ms + 10.0 ns/B from 0 B; median error 3.0%" in text


def test_no_figure_is_cut_where_the_terminal_is_narrow():
    assert "…" not in shown(network("allreduce"), "allreduce", width=45)


def test_the_overview_has_a_row_for_every_collective():
    console = Console(file=io.StringIO(), width=120)
    console.print(overview(network("gtopk", samples=False)))
    console.print(overview(network("allreduce", fit=None)))
    text = console.file.getvalue()
    for expected in ("gtopk", "1.00 ms", "3.00 %", "allreduce", "1 MiB", "157 MB/s"):
        assert expected in text


def test_one_rank_is_no_ranks():
    alone = Network(backend="gloo", world_size=1, collectives={})
    assert overview(alone).title == "1 rank, gloo"


def test_a_network_may_lack_fit_or_samples():
    assert "not fitted" in shown(network("gtopk", fit=None), "gtopk")
    assert "1.00 ms + 10.0 ns/B" in shown(network("gtopk", samples=False), "gtopk")
