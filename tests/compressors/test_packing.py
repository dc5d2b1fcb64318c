"""Claims about packing trits and codes, and about stochastic rounding."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.compressors.packing import (
    pack_codes,
    pack_trits,
    unpack_codes,
    unpack_trits,
)
from comm_plan.compressors.rounding import (
    CHUNK_NUMEL,
    StochasticRounding,
    random_key,
    round_stochastically,
)
from comm_plan.plans.compression.spec import packed_nbytes, packed_together


@given(st.lists(st.integers(-1, 1), min_size=1, max_size=60))
def test_trits_come_back_five_from_a_byte(values):
    trits = torch.tensor(values, dtype=torch.int8)
    packed = pack_trits(trits)
    assert packed.dtype == torch.uint8
    assert packed.numel() == -(-len(values) // 5)
    assert torch.equal(unpack_trits(packed, len(values)), trits)


def test_every_byte_of_trits_is_its_base_3_number():
    trits = torch.cartesian_prod(*[torch.tensor([-1, 0, 1])] * 5).to(torch.int8)
    packed = pack_trits(trits.T.flip(0).reshape(-1))
    assert packed.tolist() == list(range(243))


@given(st.data(), st.integers(1, 8), st.integers(1, 3))
@settings(max_examples=200)
def test_codes_come_back_from_their_bits(data, bits, rows):
    numel = data.draw(st.integers(1, 50))
    values = st.lists(st.integers(0, 2**bits - 1), min_size=numel, max_size=numel)
    codes = torch.tensor([data.draw(values) for _ in range(rows)], dtype=torch.uint8)
    packed = pack_codes(codes, bits)
    assert packed.shape == (rows, packed_nbytes(numel, bits))
    assert torch.equal(unpack_codes(packed, bits, numel), codes)


@given(st.data(), st.integers(1, 8))
def test_codes_that_are_packed_together_are_a_stream_of_bits_lowest_first(data, bits):
    together, nbytes = packed_together(bits)
    assert 8 * nbytes == together * bits
    numbers = st.integers(0, 2**bits - 1)
    values = data.draw(st.lists(numbers, min_size=together, max_size=together))
    packed = pack_codes(torch.tensor(values, dtype=torch.uint8), bits)
    stream = [value >> bit & 1 for value in values for bit in range(bits)]
    expected = np.packbits(np.array(stream, np.uint8), bitorder="little")
    assert packed.tolist() == expected.tolist()


@given(st.integers(1, 10**6), st.integers(1, 8))
def test_packed_codes_take_few_bytes_more_than_their_bits(numel, bits):
    assert 0 <= packed_nbytes(numel, bits) - numel * bits / 8 < bits


def rounded(x: torch.Tensor, *key: int) -> torch.Tensor:
    out = torch.empty(x.numel(), dtype=torch.int8)
    round_stochastically(x, out, key)
    return out


def test_rounding_in_parts_draws_the_same_numbers():
    """Also where elements need more random bits, as these do."""
    x = torch.full((20 * CHUNK_NUMEL + 40,), 0.7)
    whole, parts = torch.empty_like(x, dtype=torch.int8), StochasticRounding((7,))
    round_stochastically(x, whole, (7,))
    in_parts = torch.empty_like(whole)
    for part, out in zip(x.split(2000), in_parts.split(2000), strict=True):
        parts.round(part, out)
    assert torch.equal(in_parts, whole)


@pytest.mark.parametrize(
    "value", [0.0, 1e-3, -1e-3, 0.3, -0.3, 0.999, 1.0, -1.0, 5.25, -6.5]
)
def test_rounding_is_right_on_average(value):
    draws = 1 << 20
    mean = rounded(torch.full((draws,), value), 7).double().mean().item()
    fraction = value - np.floor(value)
    sigma = (fraction * (1 - fraction) / draws) ** 0.5
    assert abs(mean - np.float32(value)) <= 6 * sigma


def test_what_16_bits_cannot_hold_is_still_right_on_average():
    """A probability of 2^-18 would be none or 2^-16 by a plain 16-bit comparison."""
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("value", [0.0, 1e-3, -0.3, 1.0, -1.0])
def test_rounding_on_gpu_is_right_on_average(value):
    draws = 1 << 20
    out = torch.empty(draws, dtype=torch.int8, device="cuda")
    round_stochastically(torch.full((draws,), value, device="cuda"), out, (7,))
    fraction = value - np.floor(value)
    sigma = (fraction * (1 - fraction) / draws) ** 0.5
    assert abs(out.double().mean().item() - np.float32(value)) <= 6 * sigma


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_packs_the_same_bytes():
    trits = torch.randint(-1, 2, (1003,), dtype=torch.int8)
    packed = pack_trits(trits.cuda())
    assert torch.equal(packed.cpu(), pack_trits(trits))
    assert torch.equal(unpack_trits(packed, 1003).cpu(), trits)
