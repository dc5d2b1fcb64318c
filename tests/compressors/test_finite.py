"""What tells inf and NaN in means: against torch.isfinite on every number."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.compressors import build
from comm_plan.compressors.base import Context, Slot
from comm_plan.compressors.finite import is_finite
from comm_plan.plans.compression import Dense
from comm_plan.plans.compression.half import Bf16, Fp16
from comm_plan.plans.compression.rows import Rows

NUMBERS = st.lists(st.floats(width=16), max_size=40)
SLOTS = [Slot("a", 6, (3, 2)), Slot("b", 4, (2, 2))]


@given(NUMBERS, st.sampled_from([torch.float16, torch.bfloat16, torch.float64]))
def test_it_is_what_every_number_says(numbers, dtype):
    tensor = torch.tensor(numbers, dtype=dtype)
    assert is_finite(tensor) == bool(torch.isfinite(tensor).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_numbers_whose_sum_is_not_are_finite(dtype):
    assert is_finite(torch.full([1000], torch.finfo(dtype).max, dtype=dtype))


@pytest.mark.parametrize("value", [0.5, torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("place", range(10))
@pytest.mark.parametrize("spec", [Dense(), Fp16(), Bf16(), Rows()])
def test_compressors_find_it_anywhere_in_the_bucket(spec, place, value):
    context = Context(world_size=1, rank=0, device=torch.device("cpu"))
    compressor = build(spec, "allreduce", SLOTS, context)
    gradients = torch.ones(10)
    gradients[place] = value
    for index, part in enumerate(gradients.split([6, 4])):
        compressor.add(index, part)
    compressor.decode([compressor.encode()])
    assert compressor.is_finite() == (value == 0.5)
