"""Claims about the 32-bit words and what their senders share."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.compressors import build, loops
from comm_plan.compressors.base import RESIDUAL, Context, Slot
from comm_plan.compressors.chunks import CHUNK_NUMEL
from comm_plan.compressors.words import MAX_NUMEL, pack, unpack
from comm_plan.errors import MismatchError
from comm_plan.plans.compression import Hybrid, Strom, Vgc

SPECS = [Vgc(alpha=1.0), Vgc(alpha=2.0), Strom(tau=0.25), Hybrid(tau=0.25)]
SLOTS = [Slot("a", 5), Slot("b", 1), Slot("c", 30)]


def ranks_of(spec, world_size, slots=SLOTS):
    cpu = torch.device("cpu")
    contexts = [Context(world_size, rank, cpu, seed=rank) for rank in range(world_size)]
    return [build(spec, "allgather", slots, context) for context in contexts]


def add_random(compressor, generator):
    """Add gradients that sum without rounding; return them."""
    gradients = []
    for index, slot in enumerate(compressor.slots):
        shape = (4, slot.numel)  # 4 samples
        samples = torch.randint(-1500, 1501, shape, generator=generator) / 2048
        samples *= torch.rand(shape, generator=generator) < 0.5
        gradients.append(samples.sum(0))
        compressor.add(index, gradients[-1], samples.square().sum(0))
    return torch.cat(gradients)


def state_of(compressor, quantity=RESIDUAL):
    return torch.cat([tensor.clone() for tensor in compressor.state[quantity]])


def written(compressor):
    outs = [torch.full((slot.numel,), torch.nan) for slot in compressor.slots]
    for index, out in enumerate(outs):
        compressor.write(index, out)
    return torch.cat(outs)


elements = st.lists(
    st.tuples(
        st.integers(0, MAX_NUMEL - 1), st.integers(0, 7), st.sampled_from([-1.0, 1.0])
    )
)


@pytest.mark.parametrize("spec", SPECS, ids=repr)
@pytest.mark.parametrize("share", [0.0, 1e-3, 0.05, 0.6, 1.0])
def test_loops_and_operations_send_the_same(spec, share, monkeypatch):
    """Bit by bit, in buckets of several parts that end anywhere, and leave the same."""
    pytest.importorskip("numba")
    slots = [Slot("a", CHUNK_NUMEL - 3), Slot("b", 1), Slot("c", CHUNK_NUMEL + 77)]
    found = []
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(loops, "_compiled", lambda: None)
        (compressor,) = ranks_of(spec, 1, slots)
        generator = torch.Generator().manual_seed(7)
        for index, slot in enumerate(slots):
            large = torch.rand(slot.numel, generator=generator) < share
            gradient = torch.randn(slot.numel, generator=generator) * (0.01 + 9 * large)
            compressor.add(index, gradient, torch.full_like(gradient, 0.01))
        (message,) = compressor.encode()
        states = [torch.cat(list(each)) for each in compressor.state.values()]
        found.append((message, *states))
    for by_loops, by_operations in zip(*found, strict=True):
        assert torch.equal(by_loops, by_operations)
    words = len(found[0][0])
    assert words <= 1 if share == 0 else words > share * CHUNK_NUMEL


@given(elements)
def test_unpack_returns_what_was_packed(elements):
    columns = zip(*elements, strict=True) if elements else ((), (), ())
    position, distance, signed = (list(column) for column in columns)
    distance = torch.tensor(distance, dtype=torch.int32)
    words = pack(torch.tensor(position).long(), distance, torch.tensor(signed))
    assert words.dtype == torch.int32 and words.numel() == len(elements)
    unpacked_position, unpacked_distance, sign = unpack(words)
    assert unpacked_position.tolist() == position
    assert torch.equal(unpacked_distance, distance)
    assert [-1.0 if bit else 1.0 for bit in sign.tolist()] == signed


def test_a_word_is_sign_then_three_bits_of_exponent_then_28_of_position():
    words = pack(
        torch.tensor([1, MAX_NUMEL - 1]),
        torch.tensor([5, 7], dtype=torch.int32),
        torch.tensor([2.0, -2.0]),
    )
    assert [f"{word & 0xFFFFFFFF:08x}" for word in words.tolist()] == [
        "50000001",
        "ffffffff",
    ]


def test_the_tensor_that_leaves_the_address_space_is_named():
    slots = [Slot("small", 10), Slot("decoder.weight", MAX_NUMEL)]
    with pytest.raises(MismatchError, match=r"decoder\.weight.*268435456"):
        ranks_of(Strom(tau=1.0), 1, slots)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@given(world_size=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_no_gradient_is_lost_and_all_ranks_apply_the_same(spec, world_size, seed):
    generator = torch.Generator().manual_seed(seed)
    ranks = ranks_of(spec, world_size)
    for _ in range(3):
        expected = sum(state_of(rank) for rank in ranks)
        expected = expected + sum(add_random(rank, generator) for rank in ranks)
        messages = [rank.encode() for rank in ranks]
        for rank in ranks:
            rank.decode(messages)
        means = [written(rank) for rank in ranks]
        assert all(torch.equal(mean, means[0]) for mean in means)
        kept = sum(state_of(rank) for rank in ranks)
        torch.testing.assert_close(world_size * means[0] + kept, expected)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_what_is_decoded_is_exactly_what_left_the_residual(spec, seed):
    generator = torch.Generator().manual_seed(seed)
    (rank,) = ranks_of(spec, 1)
    for _ in range(3):
        add_random(rank, generator)
        before = state_of(rank)
        rank.decode([rank.encode()])
        assert torch.equal(before - state_of(rank), written(rank))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_undo_brings_the_state_back_bit_by_bit(spec):
    generator = torch.Generator().manual_seed(1)
    (rank,) = ranks_of(spec, 1)
    moved = False
    for _ in range(5):
        add_random(rank, generator)
        before = {quantity: state_of(rank, quantity) for quantity in rank.state}
        first = rank.encode()
        moved |= not torch.equal(state_of(rank), before[RESIDUAL])
        rank.undo()
        for quantity, tensor in before.items():
            assert torch.equal(state_of(rank, quantity), tensor)
        assert torch.equal(rank.encode()[0], first[0])
    assert moved


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_undo_before_any_step_changes_nothing(spec):
    (rank,) = ranks_of(spec, 1)
    rank.undo()
    assert not state_of(rank).any()


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_zero_gradients_send_no_word_and_apply_zero(spec):
    ranks = ranks_of(spec, 3)
    for rank in ranks:
        for index, slot in enumerate(SLOTS):
            rank.add(index, torch.zeros(slot.numel), torch.zeros(slot.numel))
    messages = [rank.encode() for rank in ranks]
    header = 1 if spec.kind == "vgc" else 0
    assert [message[0].numel() for message in messages] == [header] * 3
    ranks[0].decode(messages)
    assert torch.equal(written(ranks[0]), torch.zeros(36))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_equal_inputs_give_equal_messages_whatever_the_seed(spec):
    first, second = ranks_of(spec, 2)
    for rank in (first, second):
        add_random(rank, torch.Generator().manual_seed(3))
    (message,), (other,) = first.encode(), second.encode()
    assert message.dtype == torch.int32 and message.numel() > 1
    assert torch.equal(message, other)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_restored_state_continues_with_the_same_messages(spec):
    generator = torch.Generator().manual_seed(5)
    (old,), (new,) = ranks_of(spec, 1), ranks_of(spec, 1)
    add_random(old, generator)
    old.encode()
    for quantity, tensors in old.state.items():
        for tensor, saved in zip(new.state[quantity], tensors, strict=True):
            tensor.copy_(saved)
    for rank in (old, new):
        add_random(rank, torch.Generator().manual_seed(6))
    assert torch.equal(old.encode()[0], new.encode()[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("spec", SPECS, ids=repr)
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_a_gpu_sends_what_a_cpu_sends(spec, scale):
    messages = []
    for device in ("cpu", "cuda"):
        context = Context(1, 0, torch.device(device))
        compressor = build(spec, "allgather", SLOTS, context)
        generator = torch.Generator().manual_seed(1)
        for index, slot in enumerate(SLOTS):
            gradient = scale * torch.randn(slot.numel, generator=generator)
            moment = torch.full_like(gradient, 0.5).to(device)
            compressor.add(index, gradient.to(device), moment)
        (message,) = compressor.encode()
        messages.append(message.cpu())
    assert torch.equal(*messages)
