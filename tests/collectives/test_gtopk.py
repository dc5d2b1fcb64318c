"""gTop-k follows its definition for any P, and loses nothing."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.collectives.exact_gtopk import top_of_all
from comm_plan.collectives.gtopk import rounds
from comm_plan.collectives.top_of_sum import DeviceMerge, NumpyMerge
from comm_plan.tests.support.engines import ANYWHERE
from comm_plan.tests.support.harness import real_ranks, run_ranks
from comm_plan.tests.support.rank_programs import Recorder, aggregate

CPU = torch.device("cpu")


def sparse_message(draw, counts, universe):
    """Draw distinct indices and values of each slot; small whole numbers tie often."""
    values, indices = [], []
    for k in counts:
        places = st.integers(0, universe - 1)
        indices += draw(st.lists(places, min_size=k, max_size=k, unique=True))
        values += draw(st.lists(st.integers(-4, 4), min_size=k, max_size=k))
    return torch.tensor(values).float(), torch.tensor(indices, dtype=torch.int32)


def layouts():
    """Entries of one to three slots."""
    return st.lists(st.integers(1, 6), min_size=1, max_size=3)


@st.composite
def cases(draw):
    """Draw one codec per rank."""
    world_size, counts = draw(st.integers(1, 9)), draw(layouts())
    universe = max(counts) + draw(st.integers(0, 12))
    return [
        Recorder(sparse_message(draw, counts, universe), counts=counts)
        for _ in range(world_size)
    ]


def slots(message, counts):
    """Return one {index: value} for each slot."""
    values, indices = (tensor.split(list(counts)) for tensor in message)
    return [
        dict(zip(i.tolist(), v.tolist(), strict=True))
        for v, i in zip(values, indices, strict=True)
    ]


def total(*vectors):
    """Add sparse vectors."""
    keys = set(itertools.chain(*vectors))
    return {i: math.fsum(vector.get(i, 0.0) for vector in vectors) for i in keys}


def top(vector, k):
    """Definition 1: the k largest magnitudes; of equal ones the lower index."""
    ranked = sorted(vector, key=lambda i: (-abs(vector[i]), i))
    return {i: vector[i] for i in ranked[:k]}


def by_definition(vectors, k):
    """Fold the surplus in, then combine halves of neighbours."""
    core = 2 ** int(math.log2(len(vectors)))
    leaves = vectors[:core]
    for r, vector in enumerate(vectors[core:]):
        leaves[r] = top(total(leaves[r], vector), k)

    def tree(part):
        if len(part) == 1:
            return part[0]
        half = len(part) // 2
        return top(total(tree(part[:half]), tree(part[half:])), k)

    return tree(leaves)


def check(run, codecs):
    counts = codecs[0].counts
    sent = [slots(codec.message, counts) for codec in codecs]
    outcomes = run(len(codecs), aggregate, "gtopk", codecs)
    results = [codec.received for codec, _ in outcomes]
    assert all(nbytes == 8 * sum(counts) for _, nbytes in outcomes)
    for ((values, indices),) in results:
        assert torch.equal(values, results[0][0][0])
        assert torch.equal(indices, results[0][0][1])
    (message,) = results[0]
    for slot, result in enumerate(slots(message, counts)):
        mine = [vectors[slot] for vectors in sent]
        assert result == by_definition(mine, counts[slot])
        kept_back = [codec.residuals[slot] for codec, _ in outcomes]
        after, before = total(result, *kept_back), total(*mine)
        assert all(after.get(i, 0.0) == before.get(i, 0.0) for i in after | before)


@given(cases())
@settings(max_examples=200)
def test_the_result_is_the_definition_and_nothing_is_lost(codecs):
    check(run_ranks, codecs)


@given(cases())
def test_the_exact_result_is_the_top_of_the_whole_sum(codecs):
    """Algorithm 2; between two ranks the tree is exact."""
    counts = codecs[0].counts
    exact = top_of_all([codec.message for codec in codecs], counts)
    sent = [slots(codec.message, counts) for codec in codecs]
    for slot, result in enumerate(slots(exact, counts)):
        vectors = [ranks[slot] for ranks in sent]
        assert result == top(total(*vectors), counts[slot])
        if len(codecs) <= 2:
            assert result == by_definition(vectors, counts[slot])


@pytest.mark.parametrize("engine", ANYWHERE)
@given(cases())
@settings(max_examples=40)
def test_real_engines_give_the_definition_and_lose_nothing(engine, codecs):
    check(real_ranks(engine).run, codecs)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_parameters_without_elements_have_nothing_to_send(world_size):
    nothing = torch.empty(0), torch.empty(0, dtype=torch.int32)
    codecs = [Recorder(nothing, counts=[0, 0]) for _ in range(world_size)]
    check(run_ranks, codecs)


@given(st.data())
def test_with_everything_selected_it_is_an_all_reduce(data):
    world_size, numel = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 6))
    codecs = [
        Recorder(sparse_message(data.draw, [numel], numel), counts=[numel])
        for _ in range(world_size)
    ]
    expected = total(*(slots(codec.message, [numel])[0] for codec in codecs))
    for codec, _ in run_ranks(world_size, aggregate, "gtopk", codecs):
        (message,) = codec.received
        assert slots(message, [numel]) == [expected]
        assert not any(any(residual.values()) for residual in codec.residuals)


@pytest.mark.parametrize("world_size", range(1, 130))
def test_every_rank_hands_in_once_and_rank_0_gets_all(world_size):
    schedule = rounds(world_size)
    assert len(schedule) == math.ceil(math.log2(world_size))
    holds = {rank: {rank} for rank in range(world_size)}
    for pairs in schedule:
        ranks = list(itertools.chain(*pairs))
        assert len(set(ranks)) == len(ranks), "a rank has one partner a round"
        for receiver, sender in pairs:
            holds[receiver] |= holds.pop(sender)
    assert holds == {0: set(range(world_size))}


def test_a_nan_reaches_every_rank():
    nan = (torch.tensor([math.nan]), torch.tensor([7], dtype=torch.int32))
    large = (torch.tensor([1e30]), torch.tensor([2], dtype=torch.int32))
    for place in range(5):
        messages = [nan if rank == place else large for rank in range(5)]
        codecs = [Recorder(message, counts=[1]) for message in messages]
        for codec, _ in run_ranks(5, aggregate, "gtopk", codecs):
            ((values, _),) = codec.received
            assert math.isnan(values.item())


@given(st.data())
def test_both_ways_to_merge_agree(data):
    counts = data.draw(layouts())
    universe = max(counts) + data.draw(st.integers(0, 6))
    a, b = (sparse_message(data.draw, counts, universe) for _ in range(2))
    outcomes = []
    for merge in (NumpyMerge(counts), DeviceMerge(counts, CPU)):
        kept, dropped = merge(merge.prepare(a), merge.prepare(b))
        outcomes.append((slots(kept, counts), [dense(*rest) for rest in dropped]))
    assert outcomes[0] == outcomes[1]


def dense(values, indices):
    """Return 20 numbers: an index may come twice, the second time with 0."""
    return torch.zeros(20).index_add(0, indices, values).tolist()
