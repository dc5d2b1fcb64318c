"""SparDL follows its definition for any P, and loses nothing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.collectives.spardl import distances
from comm_plan.tests.collectives.test_gtopk import slots, sparse_message, top, total
from comm_plan.tests.support.engines import ANYWHERE
from comm_plan.tests.support.harness import real_ranks, run_ranks
from comm_plan.tests.support.rank_programs import Recorder, aggregate


@st.composite
def cases(draw):
    """Draw one codec per rank, with a block of 0 to 4 entries for every rank."""
    world_size = draw(st.integers(1, 9))
    sizes = st.lists(st.integers(0, 4), min_size=world_size, max_size=world_size)
    counts = draw(sizes)
    universe = max(1, *counts) + draw(st.integers(0, 12))
    return [
        Recorder(sparse_message(draw, counts, universe), counts=counts)
        for _ in range(world_size)
    ]


def by_definition(blocks, owner, k):
    """Reduce one block to its owner: who is d or more behind adds to who is d nearer.

    Args:
        blocks: that of every rank.
        owner: the rank it ends at.
        k: how many entries are kept after every addition.
    """
    world_size = len(blocks)
    behind = [blocks[(owner - far) % world_size] for far in range(world_size)]
    for distance in reversed(distances(world_size)):
        for far in range(distance, len(behind)):
            behind[far - distance] = top(total(behind[far - distance], behind[far]), k)
        del behind[distance:]
    return behind[0]


def check(run, codecs):
    counts = codecs[0].counts
    sent = [slots(codec.message, counts) for codec in codecs]
    outcomes = run(len(codecs), aggregate, "spardl", codecs)
    results = [codec.received for codec, _ in outcomes]
    assert all(nbytes == 8 * sum(counts) for _, nbytes in outcomes)
    for ((values, indices),) in results:
        assert torch.equal(values, results[0][0][0])
        assert torch.equal(indices, results[0][0][1])
    (message,) = results[0]
    for block, result in enumerate(slots(message, counts)):
        mine = [vectors[block] for vectors in sent]
        assert result == by_definition(mine, block, counts[block])
        kept_back = [codec.residuals[block] for codec, _ in outcomes]
        after, before = total(result, *kept_back), total(*mine)
        assert all(after.get(i, 0.0) == before.get(i, 0.0) for i in after | before)


@given(cases())
@settings(max_examples=200)
def test_the_result_is_the_definition_and_nothing_is_lost(codecs):
    check(run_ranks, codecs)


@pytest.mark.parametrize("engine", ANYWHERE)
@given(cases())
@settings(max_examples=30)
def test_real_engines_give_the_definition_and_lose_nothing(engine, codecs):
    check(real_ranks(engine).run, codecs)


@pytest.mark.parametrize("world_size", range(1, 10))
def test_with_everything_selected_it_is_an_all_reduce(world_size):
    numel = 3 * world_size
    values = torch.arange(1.0, numel + 1)
    indices = torch.arange(3, dtype=torch.int32).repeat(world_size)
    codecs = [
        Recorder((values * (rank + 1), indices), counts=[3] * world_size)
        for rank in range(world_size)
    ]
    for codec, _ in run_ranks(world_size, aggregate, "spardl", codecs):
        ((found, places),) = codec.received
        assert torch.equal(found, values * sum(range(world_size + 1)))
        assert torch.equal(places, indices)
        assert not any(any(residual.values()) for residual in codec.residuals)


@pytest.mark.parametrize("world_size", range(1, 130))
def test_rounds_grow_with_the_logarithm(world_size):
    assert len(distances(world_size)) == math.ceil(math.log2(world_size))


def test_a_nan_reaches_every_rank():
    places = torch.zeros(5, dtype=torch.int32)
    for place in range(5):
        values = [torch.full((5,), 1e30) for _ in range(5)]
        values[place][3] = math.nan
        codecs = [Recorder((each, places), counts=[1] * 5) for each in values]
        for codec, _ in run_ranks(5, aggregate, "spardl", codecs):
            ((found, _),) = codec.received
            assert found.isnan().tolist() == [False, False, False, True, False]
