"""All-reduce gives every rank the one exact sum."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.tests.support.engines import ANYWHERE
from comm_plan.tests.support.harness import real_ranks, run_ranks
from comm_plan.tests.support.rank_programs import Recorder, aggregate

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8)


@st.composite
def cases(draw):
    """Draw one codec per rank; whole numbers, so that every order sums the same."""
    world_size = draw(st.integers(1, 9))
    numel = draw(st.integers(1, 40))
    dtype = draw(st.sampled_from(DTYPES))
    values = st.lists(st.integers(-14, 14), min_size=numel, max_size=numel)
    return [
        Recorder((torch.tensor(draw(values)).to(dtype),), scaler=draw(st.floats(0, 9)))
        for _ in range(world_size)
    ]


def check(run, codecs):
    outcomes = run(len(codecs), aggregate, "allreduce", codecs)
    sent = [codec.message[0] for codec in codecs]
    total = torch.stack(sent).double().sum(0)
    for codec, nbytes in outcomes:
        ((summed,),) = codec.received
        assert summed.dtype == sent[0].dtype
        assert torch.equal(summed.double(), total)
        assert nbytes == sent[0].numel() * sent[0].element_size()


@given(cases())
def test_every_rank_gets_the_sum(codecs):
    check(run_ranks, codecs)


@pytest.mark.parametrize("engine", ANYWHERE)
@given(cases())
@settings(max_examples=40)
def test_every_rank_of_a_real_engine_gets_the_sum(engine, codecs):
    check(real_ranks(engine).run, codecs)


@given(cases())
@settings(max_examples=20)
def test_ranks_agree_on_the_maximum_before_they_encode(codecs):
    largest = max(torch.tensor(codec.scaler).item() for codec in codecs)
    for codec, _ in run_ranks(len(codecs), aggregate, "allreduce", codecs):
        assert codec.scaler == largest
