"""Claims about TernGrad."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.compressors import build
from comm_plan.compressors.base import Context, Slot
from comm_plan.compressors.terngrad import TernGradCompressor
from comm_plan.plans.compression import TernGrad
from comm_plan.transports.local import LocalTransport

pytestmark = pytest.mark.usefixtures("with_and_without_loops", "as_on_a_gpu_too")

NUMELS = (33, 1, 20)


def terngrad(
    world_size=1, rank=0, collective="allgather", numels=NUMELS, clip=2.5, seed=None
):
    slots = [Slot(f"t{i}", numel) for i, numel in enumerate(numels)]
    seed = rank if seed is None else seed
    context = Context(world_size, rank, torch.device("cpu"), seed)
    return build(TernGrad(clip=clip), collective, slots, context)


class Shared(LocalTransport):
    """Ranks that come one after the other, twice: all leave with the maximum."""

    maximum = torch.zeros(1)

    def all_reduce(self, tensor, operation="sum"):
        assert operation == "max"
        self.maximum = torch.maximum(self.maximum, tensor)
        tensor.copy_(self.maximum)


def exchange(ranks, gradients, step=0):
    """One step; returns the means and the int8 trits of every rank."""
    for rank, mine in zip(ranks, gradients, strict=True):
        rank.step = step
        for index, gradient in enumerate(mine):
            rank.add(index, gradient)
    shared = Shared()
    for rank in ranks + ranks:
        rank.agree(shared)
    messages = [rank.encode() for rank in ranks]
    if ranks[0].collective == "allreduce":
        total = sum(message[0].to(torch.int32) for message in messages)
        assert total.abs().max() <= 127
        messages = [(total.to(torch.int8),)]
    outs = [torch.empty_like(gradient) for gradient in gradients[0]]
    ranks[0].decode(messages)
    for index, out in enumerate(outs):
        ranks[0].write(index, out)
    return outs, shared.maximum


def random_gradients(seed, world_size, numels=NUMELS):
    generator = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(n, generator=generator) for n in numels] for _ in range(world_size)
    ]


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=4),
    st.sampled_from(["allgather", "allreduce"]),
)
@settings(max_examples=30)
def test_wire_bytes_are_packed_trits_or_one_byte_an_element(numels, collective):
    compressor = terngrad(numels=numels, collective=collective)
    message = compressor.encode()
    packed = compressor.spec.message_nbytes(numels, "allgather")
    expected = packed if collective == "allgather" else sum(numels)
    assert sum(part.nbytes for part in message) == expected


@given(st.integers(1, 9), st.integers(0, 10**6))
@settings(max_examples=30)
def test_both_collectives_give_the_same_mean(world_size, seed):
    """Where tensors are rounded one by one: at once, each has an order of its own."""
    gradients = random_gradients(seed, world_size)
    slots = [Slot(f"t{i}", numel) for i, numel in enumerate(NUMELS)]

    def ranks(collective):
        for rank in range(world_size):
            context = Context(world_size, rank, torch.device("cpu"), seed=rank)
            yield TernGradCompressor(TernGrad(), collective, slots, context)

    means = {
        collective: exchange(list(ranks(collective)), gradients)[0]
        for collective in ("allgather", "allreduce")
    }
    for one, other in zip(means["allgather"], means["allreduce"], strict=True):
        assert torch.equal(one, other)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 10**6))
@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_nothing_is_left_to_chance_where_magnitudes_are_equal(collective, numels, seed):
    generator = torch.Generator().manual_seed(seed)
    gradients = [
        [0.5 * torch.randint(-1, 2, (n,), generator=generator) for n in numels]
        for _ in range(3)
    ]
    ranks = [terngrad(3, r, collective, numels, clip=0) for r in range(3)]
    means, _ = exchange(ranks, gradients)
    for mean, own in zip(means, zip(*gradients, strict=True), strict=True):
        torch.testing.assert_close(mean, sum(own) / 3)


def test_127_ranks_fit_into_int8():
    gradients = [[torch.tensor([1.0, -1.0])]] * 127
    ranks = [terngrad(127, r, "allreduce", (2,), clip=0) for r in range(127)]
    (mean,), _ = exchange(ranks, gradients)
    torch.testing.assert_close(mean, torch.tensor([1.0, -1.0]))


@given(st.integers(1, 9), st.integers(0, 10**6))
@settings(max_examples=30)
def test_the_mean_is_a_whole_number_of_scalers_over_p(world_size, seed):
    ranks = [terngrad(world_size, r) for r in range(world_size)]
    means, scalers = exchange(ranks, random_gradients(seed, world_size))
    for mean, scaler in zip(means, scalers, strict=True):
        levels = mean.double() * world_size / scaler.double()
        torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-4)
        assert levels.abs().max() <= world_size + 1e-4


@pytest.mark.parametrize("clip", [0.0, 1.0, 2.5])
def test_the_mean_over_many_steps_is_the_clipped_gradient(clip):
    steps, world_size, numel = 500, 2, 50
    gradients = random_gradients(17, world_size, (numel,))
    expected = np.zeros(numel)
    for (gradient,) in gradients:
        values = gradient.double().numpy()
        bound = clip * values.std() if clip else np.inf
        expected += np.clip(values, -bound, bound) / world_size
    ranks = [terngrad(world_size, r, numels=(numel,), clip=clip) for r in range(2)]
    total = np.zeros(numel)
    for step in range(steps):
        (mean,), scalers = exchange(ranks, gradients, step)
        total += mean.double().numpy()
    # The variance of s * trit is |g| s - g^2, at most s^2 / 4.
    sigma = scalers.item() / 2 / (steps * world_size) ** 0.5
    assert np.abs(total / steps - expected).max() <= 6 * sigma


def test_the_scaler_is_the_largest_clipped_magnitude_of_all_ranks():
    gradients = random_gradients(23, 3, (500,))
    ranks = [terngrad(3, r, numels=(500,)) for r in range(3)]
    _, scalers = exchange(ranks, gradients)
    per_rank = [
        min(g.abs().max().item(), 2.5 * g.double().std(correction=0).item())
        for (g,) in gradients
    ]
    assert scalers.item() == pytest.approx(max(per_rank), rel=1e-5)


def test_zero_gradients_stay_zero():
    means, scalers = exchange([terngrad()], [[torch.zeros(n) for n in NUMELS]])
    assert scalers.tolist() == [0.0] * len(NUMELS)
    assert all(mean.tolist() == [0.0] * mean.numel() for mean in means)


@pytest.mark.parametrize("value", [3.0, -1e-30, 1e30, 1e38, 1e-42])
def test_tensors_of_equal_elements_are_not_clipped_away(value):
    gradients = [[torch.full((n,), value) for n in (1, 100)]]
    means, _ = exchange([terngrad(numels=(1, 100))], gradients)
    for mean, gradient in zip(means, gradients[0], strict=True):
        assert torch.equal(mean, gradient)


@given(
    st.floats(-100, 100), st.floats(1e-3, 10), st.integers(2, 300), st.integers(0, 99)
)
@settings(max_examples=50)
def test_the_bound_is_the_deviation_about_the_mean(mean, sigma, numel, seed):
    generator = torch.Generator().manual_seed(seed)
    gradient = mean + sigma * torch.randn(numel, generator=generator)
    values = gradient.double().numpy()
    _, scalers = exchange([terngrad(numels=(numel,))], [[gradient]])
    expected = min(np.abs(values).max(), 2.5 * values.std())
    assert scalers.item() == pytest.approx(expected, rel=1e-3)


def test_gradients_too_small_to_square_are_not_clipped():
    gradient = torch.tensor([1e-25, -2e-25, 3e-25])
    _, scalers = exchange([terngrad(numels=(3,))], [[gradient]])
    assert scalers.item() == pytest.approx(3e-25, rel=1e-6, abs=0)


def test_random_numbers_depend_on_seed_step_and_tensor_alone():
    gradients = random_gradients(31, 1, (200, 200))
    gradients[0][1] = gradients[0][0].clone()

    def means(seed, step):
        compressor = terngrad(numels=(200, 200), seed=seed)
        return exchange([compressor], gradients, step)[0]

    first = means(1, 2)
    again = means(1, 2)
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], means(1, 3)[0])
    assert not torch.equal(first[0], means(2, 2)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gradients_are_taken(dtype):
    gradients = [[torch.full((n,), 2.0, dtype=dtype) for n in NUMELS]]
    means, _ = exchange([terngrad()], gradients)
    assert all(torch.equal(m, g) for m, g in zip(means, gradients[0], strict=True))


def test_a_tensor_without_elements_sends_none():
    gradients = [torch.tensor([1.0, -2.0]), torch.empty(0)]
    compressor = terngrad(numels=(2, 0))
    for index, gradient in enumerate(gradients):
        compressor.add(index, gradient)
    compressor.agree(LocalTransport())
    compressor.decode([compressor.encode()])
    for index, gradient in enumerate(gradients):
        mean = torch.full_like(gradient, torch.nan)
        compressor.write(index, mean)
        assert mean.isfinite().all()
