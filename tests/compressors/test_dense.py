"""Claims about the dense compressor."""

import pytest
import torch

from comm_plan.compressors import build
from comm_plan.compressors.base import Context, Slot
from comm_plan.plans.compression import Dense

NUMELS = (5, 1, 12)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def dense(world_size):
    context = Context(world_size, 0, torch.device("cpu"))
    slots = [Slot(f"t{i}", numel) for i, numel in enumerate(NUMELS)]
    return build(Dense(), "allreduce", slots, context)


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sum_is_the_mean_of_the_gradients_as_ddp_computes_it(world_size, dtype):
    ranks = [dense(world_size) for _ in range(world_size)]
    gradients = [[torch.randn(n).to(dtype) for n in NUMELS] for _ in ranks]
    for rank, mine in zip(ranks, gradients, strict=True):
        for index, gradient in enumerate(mine):
            rank.add(index, gradient)
    buffers = [rank.encode()[0].clone() for rank in ranks]
    total = buffers[0]
    for other in buffers[1:]:
        total += other
    ranks[0].decode([(total,)])
    for index, numel in enumerate(NUMELS):
        out = torch.empty(numel, dtype=dtype)
        ranks[0].write(index, out)
        expected = gradients[0][index] * (1 / world_size)
        for mine in gradients[1:]:
            expected = expected + mine[index] * (1 / world_size)
        assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_wire_bytes_are_those_of_the_gradients(dtype):
    compressor = dense(2)
    for index, numel in enumerate(NUMELS):
        compressor.add(index, torch.ones(numel, dtype=dtype))
    (buffer,) = compressor.encode()
    assert buffer.nbytes == dtype.itemsize * sum(NUMELS)
    if dtype == torch.float32:
        assert buffer.nbytes == Dense().message_nbytes(NUMELS, "allreduce")


def test_a_gradient_that_is_a_view_of_the_buffer_is_not_copied():
    compressor = dense(4)
    compressor.allocate(torch.float32)
    gradient = compressor.view(2)
    gradient.fill_(8.0)
    compressor.add(2, gradient)
    message = compressor.encode()
    compressor.decode([message])
    compressor.write(2, gradient)
    assert gradient.data_ptr() == message[0][-NUMELS[2] :].data_ptr()
    assert gradient.tolist() == [2.0] * NUMELS[2]


def test_a_sum_that_came_in_another_buffer_reaches_the_view():
    compressor = dense(1)
    compressor.allocate(torch.float32)
    compressor.decode([(torch.full((sum(NUMELS),), 3.0),)])
    compressor.write(0, compressor.view(0))
    assert compressor.view(0).tolist() == [3.0] * NUMELS[0]


def test_a_gradient_elsewhere_is_only_read():
    compressor = dense(2)
    gradient = torch.ones(NUMELS[0])
    compressor.add(0, gradient)
    assert gradient.tolist() == [1.0] * NUMELS[0]
