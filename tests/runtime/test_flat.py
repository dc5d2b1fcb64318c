"""Tensors in nested values; those of rank 0, which travel only where they differ."""

from collections import UserDict, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from comm_plan.runtime.flat import align_tensors, tensors_in
from comm_plan.tests.support.harness import run_ranks

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.bool)


def tensors():
    """Return one of each dtype, transposed, a number and nothing."""
    matrices = [torch.ones(2, 3).to(dtype).t() for dtype in DTYPES]
    return [*matrices, torch.tensor(7), torch.empty(0)]


@pytest.mark.parametrize("differing", [None, *range(len(DTYPES))])
def test_all_ranks_have_those_of_rank_0(differing):
    def rank(transport):
        sent = []
        broadcast = transport.broadcast

        def counting(tensor, root=0):
            sent.append(tensor.nbytes)
            broadcast(tensor, root)

        transport.broadcast = counting
        mine = tensors()
        if differing is not None and transport.rank == 2:
            mine[differing][-1, -1] = 0
        align_tensors(transport, mine)
        return mine, sum(sent)

    for mine, sent_nbytes in run_ranks(3, rank):
        assert all(map(torch.equal, mine, tensors()))
        assert bool(sent_nbytes) == (differing is not None)


@dataclass
class Output:
    """What a model may return."""

    logits: Any
    states: Any = None


Pair = namedtuple("Pair", ["first", "second"])


@pytest.mark.parametrize(
    "contain",
    [
        Output,
        lambda tensor: Output("no tensor", [Output(None, tensor)]),
        lambda tensor: {"a": (1, [tensor])},
        lambda tensor: UserDict(a=tensor),
        lambda tensor: Pair(None, tensor),
    ],
)
def test_tensors_are_found_in_what_models_take_and_return(contain):
    tensor = torch.ones(2)
    assert [found is tensor for found in tensors_in(contain(tensor))] == [True]
    assert not list(tensors_in([Output, contain(None)]))


def test_what_cannot_be_read_is_passed_over():
    """A container that holds itself, a field that nobody has set, a lazy mapping."""
    output = Output(torch.ones(1))
    output.states = [output, torch.ones(2)]
    never_set = Output.__new__(Output)
    found = [*tensors_in([output, never_set, Lazy(), torch.ones(3)])]
    assert [len(tensor) for tensor in found] == [1, 2, 3]


class Lazy(Mapping):
    """Computes its values."""

    def __getitem__(self, key):
        raise AssertionError("it was asked to")

    def __iter__(self):
        return iter("ab")

    def __len__(self):
        return 2
