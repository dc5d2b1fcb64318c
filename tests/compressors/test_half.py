"""Claims about casting to 16 bits."""

import pytest
import torch

from comm_plan.compressors import build
from comm_plan.compressors.base import Context, Slot
from comm_plan.compressors.chunks import CHUNK_NUMEL
from comm_plan.plans.compression import Bf16, Fp16

NUMELS = (7, 30)
SPECS = {"fp16": (Fp16(), torch.float16), "bf16": (Bf16(), torch.bfloat16)}


def half(kind, world_size):
    context = Context(world_size, 0, torch.device("cpu"))
    slots = [Slot(f"t{i}", numel) for i, numel in enumerate(NUMELS)]
    return build(SPECS[kind][0], "allreduce", slots, context)


def mean_of(kind, gradients):
    """Return the mean of every tensor; gradients[rank][index]."""
    ranks = [half(kind, len(gradients)) for _ in gradients]
    for rank, mine in zip(ranks, gradients, strict=True):
        for index, gradient in enumerate(mine):
            rank.add(index, gradient)
    total = sum(rank.encode()[0] for rank in ranks)
    ranks[0].decode([(total,)])
    outs = [torch.empty_like(gradient) for gradient in gradients[0]]
    for index, out in enumerate(outs):
        ranks[0].write(index, out)
    return outs


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_the_mean_is_right_to_the_precision_of_the_wire(kind, dtype, world_size):
    gradients = [[torch.randn(n).to(dtype) for n in NUMELS] for _ in range(world_size)]
    unit = torch.finfo(SPECS[kind][1]).eps + torch.finfo(dtype).eps
    for index, out in enumerate(mean_of(kind, gradients)):
        stacked = torch.stack([mine[index].double() for mine in gradients])
        bound = unit * world_size * stacked.abs().mean(0) + 1e-7
        assert ((out.double() - stacked.mean(0)).abs() <= bound).all()


@pytest.mark.parametrize("kind", SPECS)
def test_wire_bytes_are_those_of_the_spec(kind):
    message = half(kind, 2).encode()
    expected = SPECS[kind][0].message_nbytes(NUMELS, "allreduce")
    assert sum(tensor.nbytes for tensor in message) == expected
    summed = SPECS[kind][0].summed_as("float32", "allreduce")
    assert message[0].dtype == SPECS[kind][1] == getattr(torch, summed)


@pytest.mark.parametrize("kind", SPECS)
def test_small_integers_arrive_exactly(kind):
    gradients = [[torch.arange(float(n)) for n in NUMELS]] * 4
    for out, numel in zip(mean_of(kind, gradients), NUMELS, strict=True):
        assert torch.equal(out, torch.arange(float(numel)))


def test_a_mean_in_range_does_not_overflow_in_the_sum():
    gradients = [[torch.full((n,), 57344.0) for n in NUMELS]] * 8
    assert mean_of("fp16", gradients)[0].tolist() == [57344.0] * NUMELS[0]


def test_a_mean_out_of_fp16_range_is_seen_as_inf():
    gradients = [[torch.full((n,), 1e6) for n in NUMELS]]
    assert torch.isinf(mean_of("fp16", gradients)[0]).all()
    assert torch.isfinite(mean_of("bf16", gradients)[0]).all()


@pytest.mark.parametrize("kind", SPECS)
def test_a_tensor_of_many_chunks_is_cast_as_a_whole_one(kind):
    numel = 2 * CHUNK_NUMEL + 5
    compressor = build(
        SPECS[kind][0],
        "allreduce",
        [Slot("large", numel)],
        Context(3, 0, torch.device("cpu")),
    )
    gradient = torch.randn(numel)
    compressor.add(0, gradient)
    assert torch.equal(
        compressor.encode()[0], (gradient * (1.0 / 3)).to(SPECS[kind][1])
    )
