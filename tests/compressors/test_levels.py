"""Groups as records: the CPU's loops and PyTorch's operations write the same bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.compressors import levels, loops
from comm_plan.compressors.chunks import CHUNK_NUMEL
from comm_plan.compressors.packing import unpack_codes
from comm_plan.compressors.rounding import StochasticRounding
from comm_plan.plans.compression.spec import FLOAT32_NBYTES, packed_nbytes

BITS = st.sampled_from([2, 3, 4, 8])


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


@pytest.mark.usefixtures("with_and_without_loops")
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
        levels.read([records], found, bits)
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
            levels.read([record], found, bits)
            expected += 2 * found
        total = torch.ones(3, 64)
        levels.add(records, total, bits, times=2)
        torch.testing.assert_close(total, expected + 1)
        levels.read(records, total, bits, times=2)
        torch.testing.assert_close(total, expected)

    def test_parts_of_larger_messages_are_added(self):
        """As they arrive: every rank's after a head that is not theirs."""
        records, _ = squeezed(randn(3, 32), 4)
        message = torch.stack([records.view(-1), records.view(-1)])
        message = torch.nn.functional.pad(message, (8, 0))
        total = torch.zeros(3, 32)
        levels.add(message[:, 8:].unflatten(1, records.shape), total, 4)
        once = torch.empty(3, 32)
        levels.read([records], once, 4)
        torch.testing.assert_close(total, 2 * once)

    @given(BITS, st.integers(1, 3), st.integers(0, 1000))
    @settings(max_examples=20)
    def test_a_drawn_level_is_next_to_its_number_and_right_on_average(
        self, bits, groups, seed
    ):
        values = randn(groups, 64, seed=seed)
        rounding = StochasticRounding((seed,), values.device)
        drawn = []
        for _ in range(300):
            records, found = room(values, bits), torch.empty_like(values)
            levels.draw(values, records, bits, rounding)
            levels.read([records], found, bits)
            drawn.append(found)
        steps = values.abs().amax(1, keepdim=True) / levels.highest(bits)
        assert ((torch.stack(drawn) - values).abs() <= steps * (1 + 1e-5)).all()
        off = torch.stack(drawn).mean(0) - values
        assert (off.abs() <= 6 * steps / 2 / 300**0.5).all()

    def test_working_in_chunks_changes_nothing(self):
        """Chunks are of whole groups, whose records do not depend on one another."""
        values = randn(2 * CHUNK_NUMEL // 96 + 5, 96)
        records, left = squeezed(values, 3)
        by_group = [squeezed(row[None], 3) for row in values]
        assert torch.equal(records, torch.cat([record for record, _ in by_group]))
        assert torch.equal(left, torch.cat([rest for _, rest in by_group]))
        whole = torch.empty_like(values)
        levels.read([records, records], whole, 3)
        torch.testing.assert_close(whole / 2 + left, values)
        rounding = StochasticRounding((5,), values.device)
        levels.draw(values, records, 3, rounding)
        levels.read([records], whole, 3)
        steps = values.abs().amax(1, keepdim=True) / levels.highest(3)
        assert ((whole - values).abs() <= steps * (1 + 1e-5)).all()

    def test_multiples_of_the_step_are_drawn_as_they_are(self):
        values = torch.arange(-7.0, 25.0).remainder(15).sub(7).mul(0.1)[None]
        rounding = StochasticRounding((1,), values.device)
        records, found = room(values, 4), torch.empty_like(values)
        for _ in range(50):
            levels.draw(values, records, 4, rounding)
            levels.read([records], found, 4)
            torch.testing.assert_close(found, values)

    def test_the_scale_is_that_of_what_is_sent(self):
        values = randn(2, 32)
        whole, left = squeezed(values, 4)
        quarter, same_left = squeezed(values, 4, scale=0.25)
        assert torch.equal(left, same_left)
        found, expected = torch.empty(2, 32), torch.empty(2, 32)
        levels.read([quarter], found, 4)
        levels.read([whole], expected, 4)
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
        patch.setattr(loops, "_compiled", lambda: None)
        by_operations, left = squeezed(values, bits, 1 / 3)
    assert torch.equal(by_loops, by_operations)
    torch.testing.assert_close(left_by_loops, left, rtol=0, atol=1e-6 * scale)


@given(st.integers(1, 7), BITS, st.integers(0, 1000))
@settings(max_examples=30)
def test_ranks_with_and_without_numba_take_the_same_mean(ranks, bits, seed):
    pytest.importorskip("numba")
    values = [randn(3, 64, seed=seed + rank) for rank in range(ranks)]
    records = [squeezed(each, bits)[0] for each in values]
    by_loops, by_operations = torch.empty(3, 64), torch.empty(3, 64)
    levels.read(records, by_loops, bits, 1 / ranks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "_compiled", lambda: None)
        levels.read(records, by_operations, bits, 1 / ranks)
    assert torch.equal(by_loops, by_operations)
