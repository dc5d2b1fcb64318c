"""DoubleSqueeze rounds to the nearest level twice, and keeps what it rounds away."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from comm_plan.compressors.base import RESIDUAL
from comm_plan.plans.compression import DoubleSqueeze
from comm_plan.tests.support.harness import run_ranks
from comm_plan.tests.support.rank_programs import bucket_steps

pytestmark = pytest.mark.usefixtures("with_and_without_loops")

GROUP = 32


def steps(gradients, bits=4, group_numel=GROUP):
    """Return what each rank applies in each step, and its residuals at the end.

    Args:
        gradients: step by step and rank by rank, the tensors of the bucket.
        bits: of the spec.
        group_numel: of the spec.
    """
    spec = DoubleSqueeze(bits=bits, group_numel=group_numel)
    ranks = run_ranks(len(gradients[0]), bucket_steps, spec, gradients)
    return [(applied, torch.cat(bucket.state[RESIDUAL])) for applied, bucket in ranks]


def test_by_hand():
    """Two ranks own a group each; 3 bits: levels from -3 to 3, steps of max / 3."""
    first, second = torch.zeros(2 * GROUP), torch.zeros(2 * GROUP)
    first[:3] = torch.tensor([3.0, 1.4, -0.6])
    second[:3] = torch.tensor([6.0, 1.2, -0.8])
    # To rank 0, its owner, rank 1 sends 6, 2 and 0 (steps of 2) and keeps the rest.
    # Rank 0 has all of its own: the sum is 9, 3.4, -0.6, in steps of 3: 9, 3, 0.
    (applied, left), (_, kept) = steps([[[first], [second]]], bits=3)
    assert applied[0][:3].tolist() == [4.5, 1.5, 0.0]
    assert not applied[0][3:].any()
    torch.testing.assert_close(left[:3], torch.tensor([0.0, 0.4, -0.6]))
    torch.testing.assert_close(kept[:3], torch.tensor([0.0, -0.8, -0.8]))


@given(
    st.integers(1, 9),
    st.lists(st.integers(1, 100), min_size=1, max_size=4),
    st.sampled_from([3, 4, 8]),
    st.integers(0, 1000),
)
@settings(max_examples=50)
def test_a_mean_is_as_near_as_two_roundings_are(world_size, numels, bits, seed):
    generator = torch.Generator().manual_seed(seed)
    gradients = [
        [torch.randn(n, generator=generator) for n in numels] for _ in range(world_size)
    ]
    levels = 2 ** (bits - 1) - 1
    means = [torch.stack(tensors).mean(0) for tensors in zip(*gradients, strict=True)]
    for (applied,), _ in steps([gradients], bits):
        for mean, found, *of_ranks in zip(
            means, applied.split(numels), *gradients, strict=True
        ):
            largest = sum(float(each.abs().max()) for each in of_ranks) / world_size
            # Each rank's rounding, and that of the sum, which is no larger than twice.
            assert (found - mean).abs().max() <= 1.5 * largest / levels + 1e-6


@given(st.integers(1, 5), st.sampled_from([3, 4, 8]), st.integers(0, 1000))
@settings(max_examples=20)
def test_what_waits_does_not_grow(world_size, bits, seed):
    """So the mean of what is applied approaches that of the gradients."""
    generator = torch.Generator().manual_seed(seed)
    of_ranks = [[torch.randn(70, generator=generator)] for _ in range(world_size)]
    mean = torch.stack([tensor for (tensor,) in of_ranks]).mean(0)
    for applied, _ in steps([of_ranks] * 40, bits):
        torch.testing.assert_close(
            torch.stack(applied).mean(0), mean, rtol=0, atol=4 / 40
        )


def test_rounding_leaves_less_than_there_was():
    """Also where one element is far larger than all others."""
    gradient = torch.randn(300, generator=torch.Generator().manual_seed(3))
    gradient[7] = 1e4
    ((_, left),) = steps([[[gradient]]], bits=3)
    assert (left.abs() <= gradient.abs()).all()
    assert 0 < left.norm() < gradient.norm()


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-30, 1e30])
def test_zeros_and_numbers_at_the_end_of_the_range_stay_finite(scale):
    gradient = scale * torch.tensor([1.0, -0.5, 0.0])
    for (applied,), left in steps([[[gradient]]], bits=8):
        assert applied.isfinite().all() and left.isfinite().all()
        torch.testing.assert_close(applied + left, gradient)
        assert applied[2] == left[2] == 0


def test_tensors_do_not_share_a_step():
    """Or a small tensor would wait for a large one."""
    large, small = torch.full((40,), 1e6), torch.full((5,), 1e-6)
    ((_, left),) = steps([[[large, small]]])
    assert (left.split([40, 5])[1].abs() < 1e-12).all()


def test_groups_that_fill_no_words_are_refused():
    with pytest.raises(ValidationError, match="multiple of 32"):
        DoubleSqueeze(group_numel=100)
