"""A rank for each layer: against all combinations, and against one rank for all."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.errors import InputError
from comm_plan.planner.low_rank import (
    SLACK,
    Choice,
    allocated,
    error,
    least_error,
    nbytes,
)
from comm_plan.plans.compression import PowerSgd
from comm_plan.plans.compression.powersgd import RANKS
from comm_plan.plans.profile import RankError
from comm_plan.tests.support import documents
from comm_plan.tests.support.planning import planned


@st.composite
def choices(draw):
    """Return choices that send more and more, and leave out less and less."""
    number = draw(st.integers(1, 4))
    steps = st.lists(st.integers(1, 100), min_size=number, max_size=number)
    sent, errors = draw(steps), draw(steps)
    return [
        Choice(2**i, float(sum(sent[: i + 1])), float(sum(errors[i:])))
        for i in range(number)
    ]


@given(st.lists(choices(), min_size=1, max_size=5), st.floats(0, 1))
def test_nothing_that_sends_no_more_is_better_by_a_whole_step(every, share):
    """Of steps along hulls, which are as long as several choices together at most."""
    least, most = (
        sum(pick(c.nbytes for c in tensor) for tensor in every) for pick in (min, max)
    )
    limit = least + share * (most - least)
    chosen = least_error(every, limit)
    assert nbytes(chosen) <= limit * SLACK
    best = min(
        error(combination)
        for combination in product(*every)
        if nbytes(combination) <= limit
    )
    longest = max(tensor[0].error - tensor[-1].error for tensor in every)
    assert error(chosen) <= best + longest


def tensor(name, shape, errors=None):
    found = errors and tuple(
        RankError(rank=rank, squared_error=error)
        for rank, error in zip(RANKS, errors, strict=True)
    )
    return documents.tensor(name, shape).model_copy(update={"low_rank": found})


EASY = tensor("easy", (256, 256), (0.0, 0.0, 0.0, 0.0, 0.0))
HARD = tensor("hard", (256, 256), (100.0, 90.0, 80.0, 60.0, 40.0))
BIAS = tensor("bias", (256,))


def test_what_is_of_rank_1_is_sent_at_rank_1():
    found = allocated(4, [EASY, HARD, BIAS])
    assert found.rank == (1, 4, 4)
    assert found.bytes_of == 4
    assert found.ratio == PowerSgd(rank=4).ratio


def test_what_is_saved_where_it_is_not_needed_is_spent_where_it_is():
    found = allocated(4, [EASY, EASY, HARD])
    assert found.rank == (1, 1, 8)


def test_what_stays_dense_saves_nothing_for_others():
    found = allocated(4, [EASY, EASY, HARD], [False, False, True])
    assert found == PowerSgd(rank=4)
    unknown = tensor("unknown", (256, 256))
    found = allocated(4, [EASY, unknown, HARD], [True, False, True])
    assert found.rank == (1, 4, 4)


def test_a_matrix_of_which_nothing_is_known_has_the_rank_of_all():
    unused = tensor("unused", (256, 256))
    assert allocated(4, [EASY, unused, EASY, HARD]).rank == (1, 4, 1, 8)


@pytest.mark.parametrize("tensors", [[HARD, HARD], [BIAS]])
def test_one_rank_for_all_stays_where_it_is_best(tensors):
    assert allocated(4, tensors) == PowerSgd(rank=4)


@pytest.mark.parametrize(
    ("rank", "tensors"), [(4, [BIAS, tensor("unknown", (256, 256))]), (3, [EASY])]
)
def test_what_the_profile_does_not_say_is_not_guessed(rank, tensors):
    with pytest.raises(InputError, match=f"what rank {rank} leaves out"):
        allocated(rank, tensors)


def test_a_matrix_that_is_sent_whole_leaves_nothing_out():
    """From rank 4 on factors of 16 x 16 do not pay."""
    small = tensor("small", (16, 16), (9.0, 8.0, 7.0, 6.0, 5.0))
    assert allocated(2, [small, EASY]).rank == (4, 1)


def plan_of(tensors, **asked):
    """Return the plan of auto, or of one bucket with a forced compressor."""
    profile = documents.profile_of(
        tensors,
        backward_s=1e-3,
        compression=documents.compression(powersgd=(1e-6, 1e-10)),
    )
    network = documents.network(4, allreduce=documents.fit((0, 1e-5, 1e-6)))
    solver = "single" if "compressor" in asked else "auto"
    return planned(profile, network, solver, **asked)


def test_auto_keeps_one_rank_for_all_where_nothing_is_known():
    tensors = [tensor("unknown", (256, 256))]
    plan = plan_of(tensors, allow=("powersgd",), max_ratio=128)
    assert plan.buckets[0].compressor == PowerSgd(rank=4)


def test_whoever_forces_powersgd_can_have_ranks_by_layer():
    plan = plan_of([HARD, EASY], compressor="powersgd", options={"bytes_of": 4})
    assert plan.buckets[0].compressor == PowerSgd(rank=(4, 1), bytes_of=4)


def test_auto_sends_each_layer_at_a_rank_of_its_own():
    plan = plan_of([HARD, EASY], allow=("powersgd",), max_ratio=128)
    specs = [bucket.compressor for bucket in plan.buckets]
    assert {spec.bytes_of for spec in specs} == {4}
    assert [rank for spec in specs for rank in spec.rank] == [4, 1]
