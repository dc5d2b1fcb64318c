"""Tensors inside nested values are found, and changed in their places."""

from collections import UserDict, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from comm_plan.nested import map_tensors, samples_in, tensors_in


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


@dataclass(frozen=True)
class Batch:
    """A batch that makes one of its fields itself."""

    ids: torch.Tensor
    kind: str = "kept"
    doubled: torch.Tensor = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "doubled", 2 * self.ids)


def test_each_tensor_is_changed_in_its_place():
    one, two = torch.tensor([1.0]), torch.tensor(2.0)
    changed = map_tensors(
        torch.neg, {"a": [one, ("kept", two)], "b": Pair(Batch(one), UserDict(c=two))}
    )
    assert changed["a"] == [-one, ("kept", -two)]
    pair = changed["b"]
    assert type(pair) is Pair and pair.second == {"c": -two}
    assert pair.first == Batch(-one)
    assert pair.first.doubled == -2 * one
    assert map_tensors(torch.neg, Batch) is Batch


def test_the_samples_are_those_of_the_first_tensor_with_a_dimension():
    batch = Output("no tensor", (torch.tensor(7), [torch.ones(3, 2), torch.ones(4)]))
    assert samples_in(batch) == 3
    assert samples_in([torch.tensor(7), "text"]) is None
