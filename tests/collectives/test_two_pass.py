"""Two passes bring every rank the combination of all parts, whatever their lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.collectives import two_pass
from comm_plan.collectives.allreduce import ALLREDUCE
from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.runtime.status import Flagged
from comm_plan.tests.support.engines import ENGINES
from comm_plan.tests.support.harness import real_ranks, run_ranks
from comm_plan.tests.support.rank_programs import Recorder


@dataclass
class Largest:
    """Combines parts by their largest elements."""

    message: torch.Tensor
    counts: Sequence[int]
    variable_length: bool = False
    combined: Any = None
    received: list[Any] = field(default_factory=list)

    def agree(self, ranks):
        """Share nothing."""

    def encode(self):
        """Send the message."""
        return (self.message.clone(),)

    def combine(self, parts):
        """Take the largest."""
        self.combined = parts.clone()
        return self.combined.amax(0)

    def decode(self, messages):
        """Keep what came."""
        self.received = messages


def aggregate(transport, codecs, flags=None):
    """Aggregate this rank's of ``codecs``; return it, its bytes and what flags say."""
    codec = codecs[transport.rank]
    flagged = codec if flags is None else Flagged(codec, flags[transport.rank])
    nbytes = COLLECTIVES["two_pass"].aggregate(transport, flagged)
    return codec, nbytes, getattr(flagged, "highest", None)


@st.composite
def cases(draw):
    """Draw one codec per rank, with a part of 0 to 9 bytes for every rank."""
    ranks = draw(st.integers(1, 9))
    counts = draw(st.lists(st.integers(0, 9), min_size=ranks, max_size=ranks))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    messages = torch.randint(
        256, (ranks, sum(counts)), generator=generator, dtype=torch.uint8
    )
    return [Largest(message, counts) for message in messages]


def check(run, codecs):
    messages = torch.stack([codec.message for codec in codecs])
    for rank, (codec, nbytes, _) in enumerate(run(len(codecs), aggregate, codecs)):
        ((result,),) = codec.received
        assert torch.equal(result, messages.amax(0))
        own = messages.split(list(codec.counts), dim=1)[rank]
        assert torch.equal(codec.combined, own)
        assert nbytes == messages.shape[1]


@given(cases())
@settings(max_examples=100)
def test_every_part_is_combined_by_its_owner(codecs):
    check(run_ranks, codecs)


@pytest.mark.parametrize("engine", ENGINES)
@given(cases())
@settings(max_examples=15)
def test_every_part_is_combined_on_real_engines(engine, codecs):
    check(real_ranks(engine).run, codecs)


@given(cases(), st.integers(0, 3), st.integers(0, 100))
@settings(max_examples=30)
def test_flags_in_front_reach_every_rank(codecs, number, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = len(codecs), number
    flags = torch.randint(100, shape, generator=generator, dtype=torch.int32)
    messages = torch.stack([codec.message for codec in codecs])
    for codec, _, highest in run_ranks(len(codecs), aggregate, codecs, flags):
        assert torch.equal(highest, flags.amax(0))
        ((result,),) = codec.received
        assert torch.equal(result, messages.amax(0))


@pytest.mark.parametrize("world_size", [1, 2, 5, 64])
def test_it_has_the_volume_of_an_all_reduce(world_size):
    found, dense = two_pass.pairwise(world_size), ALLREDUCE.terms(world_size, "ring")
    assert (found.messages, found.volume) == (dense.messages, dense.volume)


def test_of_many_ranks_each_encodes_little_more_than_once():
    assert two_pass.codings(1).encoded == 2
    assert two_pass.codings(64).encoded < 1.02
    assert two_pass.codings(64).decoded == 2


def test_what_cannot_combine_is_refused():
    with pytest.raises(TypeError, match="Recorder has no counts and combine"):
        two_pass.as_two_pass(Recorder((torch.ones(1),)))
