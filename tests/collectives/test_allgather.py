"""All-gather gives every rank every message as it was sent, in rank order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.collectives.message import pack, unpack
from comm_plan.tests.support.engines import ANYWHERE
from comm_plan.tests.support.harness import real_ranks, run_ranks
from comm_plan.tests.support.rank_programs import Recorder, aggregate

DTYPES = (torch.float32, torch.int32, torch.uint8, torch.int8, torch.int64)
DTYPES_OF_A_MESSAGE = st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3)


def tensors(draw, dtypes, lengths):
    def values(n):
        return draw(st.lists(st.integers(0, 127), min_size=n, max_size=n))

    return tuple(
        torch.tensor(values(n), dtype=dtype)
        for dtype, n in zip(dtypes, lengths, strict=True)
    )


@st.composite
def cases(draw):
    """Draw one codec per rank; of fixed or of variable length."""
    world_size = draw(st.integers(1, 9))
    dtypes = draw(DTYPES_OF_A_MESSAGE)
    variable = draw(st.booleans())
    lengths = [draw(st.integers(0 if variable else 1, 9)) for _ in dtypes]
    codecs = []
    for _ in range(world_size):
        if variable:
            lengths = [draw(st.integers(0, 9)) for _ in dtypes]
        codecs.append(Recorder(tensors(draw, dtypes, lengths), variable))
    return codecs


def check(run, codecs):
    header = 8 * (len(codecs[0].message) - 1) if codecs[0].variable_length else 0
    outcomes = run(len(codecs), aggregate, "allgather", codecs)
    for (codec, nbytes), sender in zip(outcomes, codecs, strict=True):
        assert nbytes == sum(t.nbytes for t in sender.message) + header
        assert len(codec.received) == len(codecs)
        for received, sent in zip(codec.received, codecs, strict=True):
            for ours, theirs in zip(received, sent.message, strict=True):
                assert ours.dtype == theirs.dtype
                assert torch.equal(ours, theirs)


@given(cases())
def test_every_message_arrives_as_it_was_sent(codecs):
    check(run_ranks, codecs)


@pytest.mark.parametrize("engine", ANYWHERE)
@given(cases())
@settings(max_examples=40)
def test_every_message_arrives_over_a_real_engine(engine, codecs):
    check(real_ranks(engine).run, codecs)


def test_ranks_that_send_nothing_receive_the_others():
    empty = (torch.empty(0, dtype=torch.int32), torch.empty(0))
    one = (torch.tensor([3], dtype=torch.int32), torch.tensor([0.5]))
    check(run_ranks, [Recorder(message, True) for message in (empty, one, empty)])
    check(run_ranks, [Recorder(empty, True) for _ in range(3)])


@pytest.mark.parametrize("shift", range(8))
def test_unpacking_does_not_depend_on_alignment(shift):
    message = (torch.arange(3, dtype=torch.uint8), torch.tensor([1.5, -2.0]))
    shifted = torch.cat([torch.zeros(shift, dtype=torch.uint8), pack(message)])[shift:]
    levels, norms = unpack(shifted, (torch.uint8, torch.float32), (3, 8))
    assert torch.equal(levels, message[0])
    assert torch.equal(norms, message[1])
