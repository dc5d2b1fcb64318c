"""Tensors of more than 2^31 elements: by the arithmetic, nothing of it is allocated."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.compressors import build
from comm_plan.compressors.base import Context, Slot
from comm_plan.compressors.packing import pack_trits
from comm_plan.errors import MismatchError
from comm_plan.plans.compression import METHODS, selected

LARGE = 2**31 + 13
META = torch.device("meta")  # knows shapes, holds nothing
INDEXED = [name for name, (spec, _) in METHODS.items() if spec.sparse]
SPECS = [spec for name, (spec, _) in METHODS.items() if name not in INDEXED]


@pytest.mark.parametrize("name", INDEXED)
def test_what_an_index_cannot_reach_is_refused(name):
    spec, collective = METHODS[name]
    with pytest.raises(MismatchError, match=f"{LARGE} elements"):
        build(spec, collective, [Slot("big", LARGE)], Context(2, 0, META))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_lengths_grow_in_proportion(spec):
    for collective in spec.collectives():
        small = spec.message_nbytes([LARGE], collective)
        twice = spec.message_nbytes([2 * LARGE], collective)
        assert 0 <= 2 * small - twice <= 0.01 * small


def test_packed_trits_are_counted_exactly():
    trits = torch.empty(LARGE, dtype=torch.int8, device=META)
    assert pack_trits(trits).numel() == math.ceil(Fraction(LARGE, 5))


@given(st.integers(2**31, 2**53), st.floats(1e-9, 1))
def test_a_density_selects_no_less_than_its_share(numel, density):
    count = selected(numel, density)
    share = Fraction(numel) * Fraction(density)
    assert share * Fraction(1 - 1e-11) <= count <= min(numel, share + 1 + numel * 1e-15)
