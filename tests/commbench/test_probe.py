"""A probe tells what a sweep takes, and whether it shows the bandwidth."""

from __future__ import annotations

from collections import Counter

import pytest

from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.commbench import probe as module
from comm_plan.commbench import summing
from comm_plan.commbench.probe import Probed, probe, reached, seconds
from comm_plan.commbench.sweep import fewest_calls, geometric_sizes
from comm_plan.tests.support.harness import run_ranks

SIZES = (4, 64, 1024, 16384)


def call_s(nbytes):
    return 1e-3 + 1e-5 * nbytes


@pytest.fixture
def link(monkeypatch):
    """Let every collective take 1 ms, and 10 us a byte."""
    monkeypatch.setattr(module, "seconds", lambda *arguments: call_s(arguments[-1]))


def test_sizes_are_probed_until_a_sweep_is_over_its_time(link):
    first, second = run_ranks(2, probe, SIZES, 10.0)
    assert first == second
    assert [each.nbytes for each in first] == [4, 64, 1024]
    assert [each.telling for each in first] == [False, False, True]


def test_a_sweep_calls_every_collective_and_sums_other_formats(link):
    short, long, *_ = run_ranks(2, probe, SIZES, 10.0)[0]
    calls = len(COLLECTIVES) * fewest_calls(4, call_s(4))
    assert short.sweep_s == pytest.approx((calls + summing.CALLS) * call_s(4))
    total_s = calls * (call_s(4) + call_s(64)) + summing.CALLS * call_s(64)
    assert long.sweep_s == pytest.approx(total_s)


def test_all_sizes_are_probed_until_the_bandwidth_shows(link):
    sizes = [each.nbytes for each in run_ranks(2, probe, SIZES, 0.0)[0]]
    assert sizes == [4, 64, 1024]


def reach(budget_s):
    """Return up to which size a sweep goes that is probed in powers of two."""
    probed, _ = run_ranks(2, probe, geometric_sizes(4, 16384), budget_s)
    return reached(probed, budget_s).nbytes


@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
@pytest.mark.parametrize("nbytes", [4, 64, 256, 512, 1024])
@pytest.mark.parametrize("budget_s", [0.0, 20.0, 60.0])
def test_a_sweep_goes_as_far_if_another_program_delays_a_call(
    link, monkeypatch, budget_s, nbytes, collective
):
    calm = reach(budget_s)
    probes: Counter = Counter()

    def once_delayed(transport, name, size):
        probes[transport.rank, name, size] += 1
        first = probes[transport.rank, name, size] == 1
        delay_s = 0.05 if first and (name, size) == (collective, nbytes) else 0.0
        return delay_s + call_s(size)

    monkeypatch.setattr(module, "seconds", once_delayed)
    assert reach(budget_s) == calm


def test_a_size_that_takes_long_is_not_probed_again(monkeypatch):
    probes: Counter = Counter()

    def seconds(transport, name, size):
        probes[transport.rank, name, size] += 1
        return 1e-2 * size

    monkeypatch.setattr(module, "seconds", seconds)
    first, _ = run_ranks(2, probe, SIZES, 0.0)
    assert [each.nbytes for each in first] == [4, 64]
    assert set(probes.values()) == {1}


def test_collectives_are_probed_up_to_their_largest_size(link):
    largest = COLLECTIVES["gtopk"].operation.largest_nbytes
    (*_, last), _ = run_ranks(2, probe, (largest, 2 * largest), 1e9, ("gtopk",))
    shorter, _ = run_ranks(2, probe, (largest,), 1e9, ("gtopk",))
    assert last.sweep_s == shorter[0].sweep_s


def test_only_the_collectives_of_the_sweep_count(link):
    (first, *_), _ = run_ranks(2, probe, SIZES, 10.0, ("allgather",))
    calls = fewest_calls(4, call_s(4)) + summing.CALLS
    assert first.sweep_s == pytest.approx(calls * call_s(4))


@pytest.mark.parametrize(
    ("budget_s", "nbytes"), [(0.0, 64), (20.0, 64), (50.0, 1024), (1e3, 16384)]
)
def test_sizes_reach_as_far_as_there_is_time_and_as_the_bandwidth_shows(
    budget_s, nbytes
):
    telling = (False, True, True, True)
    each_s = (1.0, 25.0, 40.0, 90.0)
    probed = [Probed(*each) for each in zip(SIZES, each_s, telling, strict=True)]
    assert reached(probed, budget_s).nbytes == nbytes


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_can_be_probed_on_all_ranks_alike(collective):
    first, *others = run_ranks(3, seconds, collective, 100)
    assert first > 0
    assert all(other == first for other in others)
