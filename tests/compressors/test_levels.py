"""Groups as records: the CPU's loops and PyTorch's operations write the same bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.compressors import levels
from comm_plan.compressors.packing import unpack_codes
from comm_plan.plans.compression.spec import FLOAT32_NBYTES, packed_nbytes

BITS = st.sampled_from([2, 3, 4, 8])


@pytest.fixture(params=["loops", "operations"])
def implementation(request, monkeypatch):
    """Use Numba's loops, or what there is without them."""
    if request.param == "loops":
        pytest.importorskip("numba")
    else:
        without_loops(monkeypatch)


def without_loops(monkeypatch):
    monkeypatch.setattr(levels, "_numba", lambda: None)


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def room(values, bits):
    nbytes = packed_nbytes(values.shape[1], bits) + FLOAT32_NBYTES
    return torch.full((len(values), nbytes), 0xA5, dtype=torch.uint8)


def squeezed(values, bits, scale=1.0):
    """Return the records of ``values``, and what rounding took from them."""
    left, records = values.clone(), room(values, bits)
    levels.squeeze(left, records, bits, scale)
    return records, left


@pytest.mark.usefixtures("implementation")
class TestRecords:
    def test_by_hand(self):
        """3 bits: levels from -3 to 3; of two as near, the even one."""
        values = torch.zeros(1, 32)
        values[0, :5] = torch.tensor([-3.0, 1.5, 2.5, -0.4, 0.0])
        records, left = squeezed(values, 3)
        assert left[0, :5].tolist() == [0.0, -0.5, 0.5, pytest.approx(-0.4), 0.0]
        packed, step = records[:, :-FLOAT32_NBYTES], records[:, -FLOAT32_NBYTES:]
        assert step.view(torch.float32).item() == 1.0
        assert unpack_codes(packed, 3, 32)[0, :5].tolist() == [0, 5, 5, 3, 3]

    @given(st.integers(1, 5), st.integers(1, 4), BITS, st.integers(0, 1000))
    @settings(max_examples=30)
    def test_what_is_read_and_what_is_left_are_all_there_was(
        self, groups, words, bits, seed
    ):
        values = randn(groups, 32 * words, seed=seed)
        records, left = squeezed(values, bits)
        found = torch.full_like(values, torch.nan)
        levels.read(records, found, bits)
        torch.testing.assert_close(found + left, values)
        steps = values.abs().amax(1, keepdim=True) / levels.highest(bits)
        assert (left.abs() <= steps / 2 * (1 + 1e-6)).all()
        assert (left.abs() <= values.abs()).all()

    @given(st.integers(1, 9), BITS, st.integers(0, 1000))
    @settings(max_examples=20)
    def test_records_of_all_ranks_add_up(self, ranks, bits, seed):
        of_ranks = randn(ranks, 3, 64, seed=seed)
        records = torch.stack([squeezed(values, bits)[0] for values in of_ranks])
        expected = torch.zeros(3, 64)
        for record in records:
            found = torch.empty(3, 64)
            levels.read(record, found, bits)
            expected += 2 * found
        total = torch.ones(3, 64)
        levels.add(records, total, bits, times=2)
        torch.testing.assert_close(total, expected + 1)

    def test_parts_of_larger_messages_are_added(self):
        """As they arrive: every rank's after a head that is not theirs."""
        records, _ = squeezed(randn(3, 32), 4)
        message = torch.stack([records.view(-1), records.view(-1)])
        message = torch.nn.functional.pad(message, (8, 0))
        total = torch.zeros(3, 32)
        levels.add(message[:, 8:].unflatten(1, records.shape), total, 4)
        once = torch.empty(3, 32)
        levels.read(records, once, 4)
        torch.testing.assert_close(total, 2 * once)

    def test_the_scale_is_that_of_what_is_sent(self):
        values = randn(2, 32)
        whole, left = squeezed(values, 4)
        quarter, same_left = squeezed(values, 4, scale=0.25)
        assert torch.equal(left, same_left)
        found, expected = torch.empty(2, 32), torch.empty(2, 32)
        levels.read(quarter, found, 4)
        levels.read(whole, expected, 4)
        torch.testing.assert_close(found, expected / 4)


@given(
    st.integers(0, 5),
    st.integers(1, 10),
    BITS,
    st.sampled_from([0.0, 1e-40, 1e-31, 1.0, 1e30]),
    st.integers(0, 1000),
)
@settings(max_examples=60)
def test_ranks_with_and_without_numba_send_the_same(groups, words, bits, scale, seed):
    pytest.importorskip("numba")
    values = scale * randn(groups, 32 * words, seed=seed)
    by_loops, left_by_loops = squeezed(values, bits, 1 / 3)
    with pytest.MonkeyPatch.context() as patch:
        without_loops(patch)
        by_operations, left = squeezed(values, bits, 1 / 3)
    assert torch.equal(by_loops, by_operations)
    torch.testing.assert_close(left_by_loops, left, rtol=0, atol=1e-6 * scale)
