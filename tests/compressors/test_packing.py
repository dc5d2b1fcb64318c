"""Claims about packing trits and codes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.compressors.packing import (
    pack_codes,
    pack_trits,
    sum_trits,
    unpack_codes,
    unpack_trits,
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


@pytest.mark.usefixtures("with_and_without_loops")
@pytest.mark.parametrize("numel", [1, 4, 5, 6, 1000, 50_003])
@pytest.mark.parametrize("world_size", [1, 3, 200])
def test_trits_of_all_ranks_add_up(numel, world_size):
    generator = torch.Generator().manual_seed(numel)
    trits = torch.randint(-1, 2, (world_size, numel), generator=generator)
    packed = torch.stack([pack_trits(own.to(torch.int8)) for own in trits])
    out = torch.full((numel,), torch.nan)
    sum_trits(packed, out, torch.tensor(0.25))
    assert torch.equal(out, trits.sum(0) * 0.25)


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_packs_the_same_bytes():
    trits = torch.randint(-1, 2, (1003,), dtype=torch.int8)
    packed = pack_trits(trits.cuda())
    assert torch.equal(packed.cpu(), pack_trits(trits))
    assert torch.equal(unpack_trits(packed, 1003).cpu(), trits)
