"""The mean of rows is that of the gradients, however they are given."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.collectives.message import message_nbytes
from comm_plan.compressors import build
from comm_plan.compressors.base import Context, Slot
from comm_plan.plans.compression.rows import ROW_INDEX_NBYTES, Rows

ROWS, WIDTH = 7, 3
CPU = torch.device("cpu")
tables = st.lists(
    st.lists(st.integers(0, ROWS - 1), max_size=5), min_size=1, max_size=4
)


def compressors(world_size):
    slots = [Slot("first", ROWS * WIDTH, (ROWS, WIDTH)), Slot("second", 4, (4,))]
    return [
        build(Rows(), "allgather", slots, Context(world_size, rank, CPU))
        for rank in range(world_size)
    ]


def gradient(numbers, seed):
    """Return a sparse gradient, not coalesced: a row may be there more than once."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(len(numbers), WIDTH, generator=generator)
    where = torch.tensor([numbers], dtype=torch.int64)
    return torch.sparse_coo_tensor(where, values, (ROWS, WIDTH), check_invariants=True)


@given(tables, st.sampled_from(["sparse", "flat", "both dimensions"]))
def test_every_rank_gets_the_mean(numbers_of_ranks, given_as):
    ranks = compressors(len(numbers_of_ranks))
    gradients = [gradient(n, seed) for seed, n in enumerate(numbers_of_ranks)]
    for rank, own in zip(ranks, gradients, strict=True):
        if given_as == "flat":
            own = own.to_dense().flatten()
        elif given_as == "both dimensions":
            own = own.to_dense().to_sparse()
        rank.add(0, own)
        rank.add(1, torch.ones(4))
    messages = [rank.encode() for rank in ranks]
    expected = torch.stack([g.to_dense() for g in gradients]).mean(0)
    for rank in ranks:
        rank.decode(messages)
        mean = rank.sparse_mean(0)
        torch.testing.assert_close(mean.to_dense(), expected)
        assert mean.is_coalesced()
        out = torch.full((ROWS * WIDTH,), torch.nan)
        rank.write(0, out)
        torch.testing.assert_close(out.view(ROWS, WIDTH), expected)
        rank.write(1, out[:4])
        torch.testing.assert_close(out[:4], torch.ones(4))


def test_a_message_holds_the_rows_that_are_there():
    (rank,) = compressors(1)
    rank.add(0, gradient([2, 5, 2], 0))
    rank.add(1, torch.zeros(4))
    assert message_nbytes(rank.encode()) == 2 * (ROW_INDEX_NBYTES + 4 * WIDTH)
