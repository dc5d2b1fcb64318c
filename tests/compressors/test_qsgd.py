"""Claims about QSGD."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.compressors import build
from comm_plan.compressors.base import Context, Slot
from comm_plan.plans.compression import Qsgd

pytestmark = pytest.mark.usefixtures("with_and_without_loops")

BITS = [2, 3, 4]


def qsgd(bits, numels, world_size=1, rank=0, group_numel=None):
    slots = [Slot(f"t{i}", numel) for i, numel in enumerate(numels)]
    context = Context(world_size, rank, torch.device("cpu"), seed=rank)
    return build(Qsgd(bits=bits, group_numel=group_numel), "allgather", slots, context)


def exchange(ranks, gradients, step=0):
    for rank, mine in zip(ranks, gradients, strict=True):
        rank.step = step
        for index, gradient in enumerate(mine):
            rank.add(index, gradient)
    ranks[0].decode([rank.encode() for rank in ranks])
    outs = [torch.empty_like(gradient) for gradient in gradients[0]]
    for index, out in enumerate(outs):
        ranks[0].write(index, out)
    return outs


@given(st.sampled_from(BITS), st.lists(st.integers(1, 1500), min_size=1, max_size=4))
@settings(max_examples=40)
def test_wire_bytes_are_those_of_the_spec(bits, numels):
    compressor = qsgd(bits, numels)
    for index, numel in enumerate(numels):
        compressor.add(index, torch.randn(numel))
    message = compressor.encode()
    nbytes = sum(part.nbytes for part in message)
    assert nbytes == compressor.spec.message_nbytes(numels, "allgather")


@given(
    st.sampled_from(BITS),
    st.lists(st.integers(1, 1500), min_size=1, max_size=3),
    st.integers(1, 9),
    st.integers(0, 10**6),
)
@settings(max_examples=30)
def test_each_rank_is_off_by_less_than_one_level(bits, numels, world_size, seed):
    generator = torch.Generator().manual_seed(seed)
    gradients = [
        [torch.randn(n, generator=generator) for n in numels] for _ in range(world_size)
    ]
    ranks = [qsgd(bits, numels, world_size, r) for r in range(world_size)]
    means = exchange(ranks, gradients)
    group, levels = ranks[0].spec.step_numel, 2 ** (bits - 1) - 1
    for index, numel in enumerate(numels):
        stacked = torch.stack([mine[index] for mine in gradients])
        for start in range(0, numel, group):
            part = stacked[:, start : start + group]
            level = part.abs().amax(1).mean() / levels
            error = (means[index][start : start + group] - part.mean(0)).abs().max()
            assert error <= level * (1 + 1e-5)


@pytest.mark.parametrize("bits", BITS)
def test_whole_levels_arrive_exactly(bits):
    """A group whose elements are multiples of norm / s needs no rounding."""
    levels = 2 ** (bits - 1) - 1
    gradient = torch.arange(1000).remainder(2 * levels + 1).sub(levels).float() * 0.25
    (mean,) = exchange([qsgd(bits, [1000])], [[gradient]])
    torch.testing.assert_close(mean, gradient, rtol=1e-6, atol=0)


@pytest.mark.parametrize("bits", BITS)
def test_the_mean_over_many_steps_is_the_gradient(bits):
    steps, numel = 500, 150
    gradient = torch.randn(numel, generator=torch.Generator().manual_seed(bits))
    compressor = qsgd(bits, [numel])
    total = np.zeros(numel)
    for step in range(steps):
        (mean,) = exchange([compressor], [[gradient]], step)
        total += mean.double().numpy()
    level = gradient.abs().max().item() / (2 ** (bits - 1) - 1)
    sigma = level / 2 / steps**0.5
    assert np.abs(total / steps - gradient.double().numpy()).max() <= 6 * sigma


@pytest.mark.parametrize("bits", BITS)
def test_zero_gradients_stay_zero(bits):
    (mean,) = exchange([qsgd(bits, [700])], [[torch.zeros(700)]])
    assert mean.tolist() == [0.0] * 700


@pytest.mark.parametrize("bits", BITS)
def test_a_group_does_not_coarsen_its_neighbours(bits):
    compressor = qsgd(bits, [2 * Qsgd(bits=bits).step_numel])
    gradient = torch.full((compressor.slots[0].numel,), 1e-3)
    gradient[-1] = 1e6
    (mean,) = exchange([compressor], [[gradient]])
    half = gradient.numel() // 2
    torch.testing.assert_close(mean[:half], gradient[:half], rtol=1e-6, atol=0)


def test_a_larger_group_sends_fewer_norms_and_is_coarser():
    gradient = torch.randn(8192, generator=torch.Generator().manual_seed(5)) ** 3
    errors, sizes = [], []
    for group_numel in (128, 512, 8192):
        compressor = qsgd(4, [8192], group_numel=group_numel)
        (mean,) = exchange([compressor], [[gradient]])
        errors.append((mean - gradient).norm().item())
        sizes.append(compressor.spec.message_nbytes([8192], "allgather"))
    assert errors[0] < errors[1] < errors[2]
    assert sizes == [4096 + 4 * 64, 4096 + 4 * 16, 4096 + 4]


def test_random_numbers_depend_on_seed_and_step():
    gradient = torch.randn(300)

    def mean(rank, step):
        return exchange([qsgd(2, [300], rank=rank)], [[gradient]], step)[0]

    assert torch.equal(mean(1, 2), mean(1, 2))
    assert not torch.equal(mean(1, 2), mean(1, 3))
    assert not torch.equal(mean(1, 2), mean(2, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gradients_are_taken(dtype):
    gradient = torch.full((700,), -2.0, dtype=dtype)
    (mean,) = exchange([qsgd(4, [700])], [[gradient]])
    assert torch.equal(mean, gradient)
