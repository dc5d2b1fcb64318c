"""Claims about stochastic rounding."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.compressors.chunks import CHUNK_NUMEL
from comm_plan.compressors.rounding import StochasticRounding, random_key

pytestmark = pytest.mark.usefixtures("with_and_without_loops")


def rounded(x: torch.Tensor, *key: int) -> torch.Tensor:
    out = torch.empty(x.numel(), dtype=torch.int8, device=x.device)
    StochasticRounding(key, x.device).round(x, out)
    return out


def test_parts_draw_numbers_of_their_own():
    x, rounding = (
        torch.full((2000,), 0.5),
        StochasticRounding((7,), torch.device("cpu")),
    )
    first, second = torch.empty(2, 2000, dtype=torch.int8)
    rounding.round(x, first)
    rounding.round(x, second)
    assert not torch.equal(first, second)
    assert torch.equal(first, rounded(x, 7))


def test_neighbours_are_as_good_as_independent():
    """They share half of their bits: the lower half of the one is the other's upper."""
    drawn = rounded(torch.full((1 << 20,), 0.5), 3).double()
    for distance in range(1, 5):
        both = (drawn[distance:] * drawn[:-distance]).mean().item()
        assert abs(both - 0.25) < 6 * (3 / 16 / drawn.numel()) ** 0.5


@pytest.mark.parametrize(
    "value", [0.0, 1e-3, -1e-3, 0.3, -0.3, 0.999, 1.0, -1.0, 5.25, -6.5]
)
def test_rounding_is_right_on_average(value):
    draws = 1 << 20
    mean = rounded(torch.full((draws,), value), 7).double().mean().item()
    fraction = value - np.floor(value)
    sigma = (fraction * (1 - fraction) / draws) ** 0.5
    assert abs(mean - np.float32(value)) <= 6 * sigma


def test_small_probabilities_are_right_on_average():
    """A probability of 2^-18 would be none or 2^-16 by a comparison of 16 bits."""
    draws, probability = 1 << 24, 2.0**-18
    count = rounded(torch.full((draws,), probability), 1).sum(dtype=torch.int64).item()
    expected = draws * probability
    assert abs(count - expected) <= 6 * expected**0.5


@given(st.floats(-7, 7, width=32), st.integers(0, 99))
def test_rounding_gives_a_neighbouring_integer(value, key):
    neighbours = {int(np.floor(value)), int(np.ceil(value))}
    assert set(rounded(torch.full((300,), value), key).tolist()) <= neighbours


def test_rounding_depends_on_the_key_alone():
    x = torch.rand(2 * CHUNK_NUMEL + 7)
    first = rounded(x, *random_key(3, 4, "w"))
    assert torch.equal(first, rounded(x, *random_key(3, 4, "w")))
    for other in [(2, 4, "w"), (3, 5, "w"), (3, 4, "v")]:
        assert not torch.equal(first, rounded(x, *random_key(*other)))


def test_the_default_dtype_of_the_users_program_changes_no_number():
    """In bfloat16 a number of 1e-3 would be 3 times as large on average."""
    x = torch.full((2000,), 1e-3)
    expected = rounded(x, 7)
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float64, torch.bfloat16, torch.float16):
            torch.set_default_dtype(dtype)
            assert torch.equal(rounded(x, 7), expected)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("value", [0.0, 1e-3, -0.3, 1.0, -1.0])
def test_rounding_on_gpu_is_right_on_average(value):
    draws = 1 << 20
    out = rounded(torch.full((draws,), value, device="cuda"), 7)
    fraction = value - np.floor(value)
    sigma = (fraction * (1 - fraction) / draws) ** 0.5
    assert abs(out.double().mean().item() - np.float32(value)) <= 6 * sigma
