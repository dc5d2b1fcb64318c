"""PowerSGD: one step by its definition, where it leads, and what it falls back to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.compressors import build
from comm_plan.compressors.base import FACTORS, RESIDUAL, Context, Slot
from comm_plan.compressors.powersgd import PowerSgdCompressor
from comm_plan.compressors.powersgd_at_once import (
    NOISE,
    PowerSgdAtOnce,
    orthonormalised,
)
from comm_plan.plans.compression import PowerSgd, matrix_of

pytestmark = pytest.mark.usefixtures("as_on_a_gpu_too")


def powersgd(*shapes, rank=2, world_size=1, made=build):
    slots = [Slot(f"t{i}", int(np.prod(s)), s) for i, s in enumerate(shapes)]
    context = Context(world_size, 0, torch.device("cpu"))
    return made(PowerSgd(rank=rank), "allreduce", slots, context)


def step(compressors, number, gradients):
    """Do a step of all ranks, one tensor each; return the mean that is applied."""
    for compressor, gradient in zip(compressors, gradients, strict=True):
        compressor.step = number
        compressor.add(0, gradient.flatten())
    total = sum(compressor.encode()[0] for compressor in compressors)
    means = []
    for compressor, gradient in zip(compressors, gradients, strict=True):
        compressor.decode([(total,)])
        means.append(torch.empty(gradient.numel()))
        compressor.write(0, means[-1])
    assert all(mean.equal(means[0]) for mean in means)
    return means[0].view_as(gradients[0])


def orthonormal(factor):
    """Gram and Schmidt's columns."""
    columns = []
    for column in factor.T:
        for done in columns:
            column = column - (done @ column) * done
        columns.append(column / np.linalg.norm(column))
    return np.stack(columns, axis=1)


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(12, 30), (12, 5, 3, 2)])
def test_two_steps_are_those_of_the_definition(shape):
    ranks = [powersgd(shape, world_size=3) for _ in range(3)]
    first, second = ([normals(*shape, seed=s + r) for r in range(3)] for s in (0, 10))
    left = ranks[0].state[FACTORS][0][:24].view(12, 2).numpy()
    residuals = [np.zeros((12, 30))] * 3

    wholes = [r + g.view(12, 30).numpy() for r, g in zip(residuals, first, strict=True)]
    left = orthonormal(left)
    rights = [whole.T @ left for whole in wholes]
    residuals = [w - left @ r.T for w, r in zip(wholes, rights, strict=True)]
    right = np.mean(rights, axis=0)
    applied = step(ranks, 0, first).view(12, 30).numpy()
    assert applied == pytest.approx(left @ right.T, abs=1e-5)

    wholes = [
        r + g.view(12, 30).numpy() for r, g in zip(residuals, second, strict=True)
    ]
    right = orthonormal(right)
    lefts = [whole @ right for whole in wholes]
    applied = step(ranks, 1, second).view(12, 30).numpy()
    assert applied == pytest.approx(np.mean(lefts, axis=0) @ right.T, abs=1e-5)
    for compressor, whole, own in zip(ranks, wholes, lefts, strict=True):
        left_over = compressor.state[RESIDUAL][0].view(12, 30).numpy()
        assert left_over == pytest.approx(whole - own @ right.T, abs=1e-5)


@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.tuples(st.integers(1, 24), st.integers(1, 24)),
    st.integers(0, 5),
)
def test_no_gradient_is_lost(world_size, rank, shape, seed):
    ranks = [
        powersgd(shape, rank=rank, world_size=world_size) for _ in range(world_size)
    ]
    made = applied = torch.zeros(shape)
    for number in range(4):
        gradients = [
            normals(*shape, seed=seed + number * 5 + r) for r in range(world_size)
        ]
        made = made + torch.stack(gradients).mean(0)
        applied = applied + step(ranks, number, gradients)
        left = torch.stack([each.state[RESIDUAL][0] for each in ranks]).mean(0)
        torch.testing.assert_close(
            left.view(shape) + applied, made, rtol=1e-4, atol=1e-4
        )


def test_gradients_of_a_low_rank_arrive_whole_after_a_few_steps():
    """The basis finds the two directions; then nothing waits any more."""
    gradient = normals(40, 2) @ normals(2, 30, seed=1)
    compressor = powersgd((40, 30), rank=2)
    for number in range(6):
        compressor.state[RESIDUAL][0].zero_()  # as if there were no error feedback
        mean = step([compressor], number, [gradient])
    torch.testing.assert_close(mean, gradient, rtol=1e-3, atol=1e-4)


def test_what_waits_stays_bounded():
    """So the mean of what is applied tends to the gradient, whatever the rank."""
    gradient = normals(20, 20)
    compressor = powersgd((20, 20), rank=1)
    total = sum(step([compressor], number, [gradient]) for number in range(500))
    error = (total / 500 - gradient).norm() / gradient.norm()
    assert error < 0.05


def test_a_step_without_gradients_gives_no_direction_up():
    compressor = powersgd((20, 20))
    for number in range(2):
        mean = step([compressor], number, [torch.zeros(20, 20)])
        assert not mean.any()
    assert step([compressor], 2, [normals(20, 20)]).any()


def test_vectors_and_small_matrices_are_sent_as_they_are():
    compressor = powersgd((9,), (7, 9), (8, 3, 2))
    gradients = [normals(n) for n in (9, 63, 48)]
    for index, gradient in enumerate(gradients):
        compressor.add(index, gradient)
    (message,) = compressor.encode()
    assert message.equal(torch.cat(gradients))
    assert [matrix_of(shape, 2) for shape in ((9,), (7, 9), (8, 3, 2))] == [None] * 3
    assert matrix_of((9, 9), 2) is not None


def test_ranks_differ_by_tensor():
    compressor = powersgd((30, 30), (30, 30), rank=(1, 4))
    for index in range(2):
        compressor.add(index, normals(900))
    assert compressor.encode()[0].numel() == 30 * (1 + 4)
    spec = PowerSgd(rank=(1, 4))
    assert spec.restricted_to(1, 2).rank == (4,)
    assert spec.planned_nbytes([(30, 30)] * 2, "allreduce") == 4 * 30 * (1 + 4)
    with pytest.raises(ValueError, match="2 ranks for 3 tensors"):
        spec.densities(3)


def test_all_ranks_start_from_the_same_factors_and_tensors_from_their_own():
    ranks = [powersgd((30, 30), (30, 30)) for _ in range(2)]
    (first, other), again = (each.state[FACTORS] for each in ranks)
    assert first.equal(again[0])
    assert not first.equal(other)


def test_what_is_undone_is_in_the_residual_again():
    compressor = powersgd((20, 20), (5,))
    gradients = normals(400), normals(5)
    for index, gradient in enumerate(gradients):
        compressor.add(index, gradient)
    compressor.decode([compressor.encode()])
    compressor.undo()
    for left, gradient in zip(compressor.state[RESIDUAL], gradients, strict=True):
        torch.testing.assert_close(left, gradient)


def test_working_at_once_is_working_tensor_by_tensor():
    """In a bucket of equal shapes, transposed ones, others, and of several ranks."""
    shapes = (12, 30), (9,), (30, 12), (12, 30), (7, 3), (40, 4, 3, 3), (30, 12), (5,)
    ranks = (2, 1, 2, 2, 1, 3, 1, 2)
    made = [
        powersgd(*shapes, rank=ranks, made=each)
        for each in (PowerSgdCompressor, PowerSgdAtOnce)
    ]
    for number in range(6):
        gradients = [normals(*shape, seed=number) * (number != 3) for shape in shapes]
        for compressor in made:
            compressor.step = number
            for index, gradient in enumerate(gradients):
                compressor.add(index, gradient.flatten())
            compressor.decode([compressor.encode()])
            if number == 4:
                compressor.undo()
        for index, gradient in enumerate(gradients):
            means = [torch.empty(gradient.numel()) for _ in made]
            for compressor, mean in zip(made, means, strict=True):
                compressor.write(index, mean)
            torch.testing.assert_close(*means, rtol=1e-4, atol=1e-4)
        left = (compressor.state[RESIDUAL] for compressor in made)
        for one, other in zip(*left, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e30])
@pytest.mark.parametrize("directions", [1, 2, 4])
def test_columns_become_orthonormal_whatever_they_are(scale, directions):
    equal = torch.ones(1, 50, directions)
    random = normals(3, 50, directions) @ normals(3, directions, 4, seed=1)
    uneven = normals(3, 50, 4) * torch.tensor([1e-6, 1.0, 0.0, 1e6])
    for columns in (equal, random, uneven):
        noise = NOISE * normals(*columns.shape, seed=2)
        bases = orthonormalised(scale * columns, noise)
        ones = torch.eye(columns.shape[2]).expand_as(bases.mT @ bases)
        torch.testing.assert_close(bases.mT @ bases, ones, rtol=0, atol=2e-6)
        if scale and directions == 4 and columns is random:
            inside = bases @ (bases.mT @ columns)  # they span what the columns span
            torch.testing.assert_close(inside, columns, rtol=0, atol=1e-4)
