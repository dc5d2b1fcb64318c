"""The fastest plan survives, whatever was predicted, and time is kept to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.tuner.halving import FEWEST, ROUNDS, TURN, Halving
from comm_plan.tuner.trials import WARM_UP, Block

BASE = "base"


class Machine:
    """Plans that take a fixed time, and a clock that they move."""

    def __init__(self, seconds, budget_s=1e9, every=None):
        self.seconds = seconds
        self.every = every or {}
        self.left = budget_s
        self.order = []

    def measure(self, name, iterations):
        self.order.append(name)
        every = self.every.get(name, 1)
        warm_up, iterations = (-(-n // every) * every for n in (WARM_UP, iterations))
        overhead_s = warm_up * self.seconds[name]
        self.left -= overhead_s + iterations * self.seconds[name]
        return Block(
            seconds=np.full(iterations, self.seconds[name]),
            losses=np.zeros(iterations),
            timing=None,
            overhead_s=overhead_s,
        )

    def run(self, predicted=None):
        halving = Halving(
            predicted or dict.fromkeys(self.seconds, 1.0),
            BASE,
            self.measure,
            lambda: self.left,
            self.every,
        )
        return list(halving.rounds()), halving.complete


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8, unique=True))
def test_the_fastest_is_in_the_last_round_with_the_baseline(times):
    seconds = {BASE: 5.0} | {f"p{i}": t for i, t in enumerate(times)}
    rounds, complete = Machine(seconds).run()
    assert complete
    assert set(rounds[0]) == set(seconds)
    best = min((n for n in seconds if n != BASE), key=lambda n: seconds[n])
    for each in rounds:
        assert {BASE, best} <= set(each)
    for name, result in rounds[-1].items():
        assert set(result) == {seconds[name]}
        if name != BASE:
            assert len(result) >= ROUNDS[-1]


def test_plans_that_take_less_run_more_often_and_a_slow_baseline_less():
    rounds, complete = Machine({BASE: 100.0, "slow": 100.0, "a": 1.0, "b": 2.0}).run()
    assert complete
    # The first round knows predictions only, here of a second each.
    assert set(map(len, rounds[0].values())) == {ROUNDS[0]}
    assert set(rounds[1]) == {BASE, "a", "b"}
    assert len(rounds[1][BASE]) == FEWEST
    assert len(rounds[1]["b"]) == ROUNDS[1]
    assert len(rounds[1]["a"]) == 2 * ROUNDS[1]


def test_predictions_tell_how_often_a_plan_runs_at_first():
    seconds = {BASE: 5.0, "dense": 5.0, "a": 0.25, "b": 2.5}
    (first, *_), _ = Machine(seconds, budget_s=200.0).run(predicted=seconds)
    counted = {name: len(result) for name, result in first.items()}
    assert counted == {BASE: 6, "dense": 6, "a": 40, "b": 12}


def test_plans_take_turns_in_both_orders():
    machine = Machine({BASE: 1.0, "a": 1.0, "b": 2.0})
    machine.run()
    assert machine.order[:6] == [BASE, "a", "b", "b", "a", BASE]
    assert machine.order[-8:] == 2 * [BASE, "a", "a", BASE]


def test_long_iterations_are_run_in_many_short_blocks_and_short_ones_in_few():
    for seconds, blocks in ((0.5, 16), (0.09, 8), (0.01, 4)):
        taken = {BASE: seconds, "a": seconds, "b": 1.01 * seconds}
        machine = Machine(taken)
        halving = Halving(taken, BASE, machine.measure, lambda: 1e9)
        (only,) = halving.rounds((80,))
        assert machine.order.count("a") == blocks
        assert len(only["b"]) in (80, 84)


@pytest.mark.parametrize(
    ("plans", "in_rounds"),
    [(1, [1, 1, 1]), (2, [2, 1, 1]), (5, [5, 3, 2]), (16, [16, 8, 4, 2])],
)
def test_the_last_two_are_compared_and_one_that_is_left_is_not_run_again(
    plans, in_rounds
):
    seconds = {BASE: 9.0} | {f"p{i}": 1.0 + i / 100 for i in range(plans)}
    rounds, complete = Machine(seconds).run()
    assert complete
    assert [len(each) - 1 for each in rounds] == in_rounds


def test_who_goes_on_is_decided_by_all_rounds():
    """The last alone would say b, which took longer before."""
    first = {BASE: 9.0, "a": 1.0, "b": 1.4, "c": 5.0, "d": 5.0}
    machine = Machine(first)
    rounds = []
    halving = Halving(first, BASE, machine.measure, lambda: machine.left)
    for each in halving.rounds((6, 6, 7)):
        rounds.append(set(each))
        machine.seconds = {**first, "a": 1.2, "b": 1.1}
    assert rounds[1:] == [{BASE, "a", "b"}, {BASE, "a"}]


def test_later_rounds_share_a_budget_that_is_short():
    """Of sixteen plans the last two are compared for as long as the last four."""
    taken = {BASE: 1.0} | {f"p{i}": 1.0 for i in range(16)}
    machine = Machine(taken, budget_s=1000.0)
    left_s = [machine.left]
    halving = Halving(taken, BASE, machine.measure, lambda: machine.left)
    left_s.extend(machine.left for _ in halving.rounds())
    first_s, *later_s = -np.diff(left_s)
    assert first_s == 2 * 17 * (WARM_UP + ROUNDS[0] / 2)
    assert len(later_s) == 3
    assert max(later_s) < 1.5 * min(later_s)
    assert not halving.complete


@given(
    st.floats(1.0, 300.0),
    st.lists(st.floats(0.1, 10.0), min_size=2, max_size=5),
)
def test_no_block_begins_that_would_not_end_in_time(budget_s, times):
    seconds = {BASE: times[0]} | {f"p{i}": t for i, t in enumerate(times[1:])}
    machine = Machine(seconds, budget_s)
    machine.run(predicted=seconds)
    assert machine.left >= -1e-9


@given(st.floats(1.0, 300.0), st.integers(2, 500), st.floats(0.1, 10.0))
def test_no_whole_round_of_local_steps_begins_that_would_not_end_in_time(
    budget_s, every, seconds
):
    taken = {BASE: 1.0, "local": seconds}
    machine = Machine(taken, budget_s, every={"local": every})
    machine.run(predicted=taken)
    assert machine.left >= -1e-9


def test_what_takes_longer_than_predicted_delays_one_block_only():
    machine = Machine({BASE: 10.0, "a": 10.0}, budget_s=60.0)
    rounds, complete = machine.run(predicted={BASE: 0.1, "a": 0.1})
    assert not complete
    assert machine.order == [BASE]
    assert set(rounds[0][BASE]) == {10.0}


@pytest.mark.parametrize("budget_s", [100.0, 200.0, 300.0])
def test_what_a_plan_took_counts_and_not_how_wrong_its_prediction_was(budget_s):
    """A round that there is time for goes to its end: A B B A, without a prediction."""
    machine = Machine({BASE: 1.0, "a": 3.0}, budget_s)
    rounds, complete = machine.run(predicted={BASE: 1.0, "a": 1.0})
    assert not complete
    assert len(rounds) > 1
    assert machine.order == machine.order[::-1]


def test_a_baseline_that_is_alone_is_measured():
    """As where all plans are the same: a model of one tensor, say."""
    (first, *_), complete = Machine({BASE: 1.0}).run()
    assert complete
    assert len(first[BASE]) == ROUNDS[0]


def test_a_round_that_was_broken_off_is_left_out():
    machine = Machine({BASE: 1.0, "a": 1.0}, budget_s=80.0)

    def measure(name, iterations):
        if len(machine.order) == 4:
            machine.left = 0.0
        return machine.measure(name, iterations)

    halving = Halving(
        dict.fromkeys(machine.seconds, 1.0), BASE, measure, lambda: machine.left
    )
    rounds = list(halving.rounds())
    assert machine.order == [BASE, "a", "a", BASE, BASE]
    assert [set(each) for each in rounds] == [{BASE, "a"}]
    assert not halving.complete


def test_nothing_is_begun_where_a_round_would_say_nothing():
    machine = Machine({BASE: 1.0, "a": 1.0}, budget_s=2.0 * FEWEST)
    assert machine.run() == ([], False)
    assert machine.order == []


def test_a_short_budget_shortens_the_last_round():
    machine = Machine({BASE: 1.0, "a": 1.0}, budget_s=100.0)
    rounds, complete = machine.run()
    assert not complete
    assert len(rounds[0][BASE]) == ROUNDS[0]
    assert 0 < len(rounds[-1][BASE]) < ROUNDS[-1]
    two_turns_s = 2 * 2 * (WARM_UP + TURN[0])
    assert 0 <= machine.left < two_turns_s
