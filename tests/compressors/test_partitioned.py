"""Partition top-k and SparDL select by parts, in turn, and forget nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.compressors.base import RESIDUAL, VELOCITY
from comm_plan.plans.compression import PartitionTopK, SparDL, dealt, selected
from comm_plan.tests.support.harness import run_ranks
from comm_plan.tests.support.rank_programs import (
    Training,
    bucket_steps,
    new_compressor,
    written,
)

SPECS = {"partition_topk": PartitionTopK, "spardl": SparDL}
both = pytest.mark.parametrize("kind", SPECS)


def steps(kind, gradients, **options):
    """Return what each rank applies in each step, and its compressor.

    Args:
        kind: of the compressor.
        gradients: step by step and rank by rank, the tensors of the bucket.
        options: of the spec, and the ``momentum`` that is corrected.
    """
    momentum = options.pop("momentum", None)
    spec = SPECS[kind](**options)
    return run_ranks(len(gradients[0]), bucket_steps, spec, gradients, momentum)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 40))
def test_everything_is_dealt_and_no_part_is_asked_for_more_than_it_has(n, k, parts):
    for step in range(parts + 1):
        numels, counts = dealt(max(n, k), parts, step), dealt(min(n, k), parts, step)
        assert (sum(numels), sum(counts)) == (max(n, k), min(n, k))
        assert all(map(int.__le__, counts, numels))
        assert max(counts) - min(counts) <= 1


@both
@given(st.integers(1, 9), st.integers(1, 30), st.integers(0, 100))
@settings(max_examples=20)
def test_everything_is_the_mean_where_all_is_sent(kind, world_size, numel, seed):
    generator = torch.Generator().manual_seed(seed)
    gradients = [[torch.randn(numel, generator=generator)] for _ in range(world_size)]
    mean = torch.stack([tensor for (tensor,) in gradients]).mean(0)
    for (applied,), bucket in steps(kind, [gradients], density=1.0):
        torch.testing.assert_close(applied, mean)
        assert not bucket.state[RESIDUAL][0].any()


def test_a_rank_chooses_the_largest_of_its_part_and_all_send_them():
    """Two ranks, four elements each: the first chooses below, then above."""
    first = torch.tensor([1.0, 4.0, 2.0, 3.0, 1.0, 4.0, 2.0, 3.0])
    second = torch.tensor([8.0, 0.5, 0.0, 0.0, 0.0, 0.0, 6.0, 0.0])
    none = torch.zeros(8)
    gradients = [[[first], [second]], [[none], [none]]]
    (applied, bucket), _ = steps("partition_topk", gradients, density=0.25)
    assert applied[0].tolist() == [0, 2.25, 0, 0, 0, 0, 4.0, 0]
    assert applied[1].tolist() == [4.5, 0, 0, 0, 0, 2.0, 0, 0]
    assert bucket.state[RESIDUAL][0].tolist() == [0, 0, 2, 3, 1, 0, 0, 3]


def test_spardl_sends_the_largest_of_each_block_and_puts_back_what_it_cuts():
    first = torch.tensor([1.0, 4.0, 2.0, 9.0])
    second = torch.tensor([3.0, 0.0, 8.0, 1.0])
    ranks = steps("spardl", [[[first], [second]]], density=0.5)
    for (applied,), _ in ranks:
        assert applied.tolist() == [0, 2.0, 0, 4.5]
    left = [bucket.state[RESIDUAL][0].tolist() for _, bucket in ranks]
    assert left == [[4, 0, 2, 0], [0, 0, 8, 1]]


@both
def test_one_element_for_many_ranks_reaches_every_part(kind):
    """K = 1 of 8: every element is sent once in the time of all parts' turns."""
    ones = [[[torch.ones(8)] for _ in range(4)]]
    none = [[[torch.zeros(8)] for _ in range(4)]]
    (applied, bucket), *_ = steps(kind, ones + 7 * none, density=0.125)
    assert torch.stack(applied).sum(0).tolist() == [1.0] * 8
    assert not bucket.state[RESIDUAL][0].any()


@both
def test_the_density_of_a_warm_up_holds_at_once(kind):
    def run(transport):
        spec = SPECS[kind](density=0.01)
        shapes = ((100,), (30,))
        training = Training(spec, spec.default_collective(), shapes, (), seed=0)
        bucket = new_compressor(transport, training)
        sent = []
        for step, floor in enumerate([0.25, 0.0725, 0.0]):
            bucket.step, bucket.density_floor = step, floor
            for index, slot in enumerate(bucket.slots):
                bucket.add(index, torch.randn(slot.numel))
            COLLECTIVES[bucket.collective].aggregate(transport, bucket)
            sent.append(int(written(bucket).count_nonzero()))
        return sent

    torch.manual_seed(0)
    for sent in run_ranks(3, run):
        assert sent == [selected(130, density) for density in (0.25, 0.0725, 0.01)]


@both
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_a_step_that_is_undone_is_in_the_residuals(kind, world_size):
    """Also once the next step has begun, as when ranks skip one."""
    generator = torch.Generator().manual_seed(3)
    gradients = [[torch.randn(41, generator=generator)] for _ in range(world_size)]
    ranks = steps(kind, [gradients], density=0.3)
    for _, bucket in ranks:
        bucket.step, bucket.density_floor = 1, 0.9
        bucket.undo()
    left = sum(bucket.state[RESIDUAL][0] for _, bucket in ranks)
    torch.testing.assert_close(left, sum(tensor for (tensor,) in gradients))
    if kind == "partition_topk":
        for (_, bucket), (tensor,) in zip(ranks, gradients, strict=True):
            assert torch.equal(bucket.state[RESIDUAL][0], tensor)


@both
def test_momentum_goes_on_but_for_what_had_waited(kind):
    gradients = [[[torch.tensor([1.0, 4.0])]], [[torch.tensor([1.0, 0.0])]]]
    (((first, second), bucket),) = steps(kind, gradients, momentum=0.5, density=0.5)
    assert first.tolist() == [0.0, 4.0]
    assert second.tolist() == [2.5, 0.0]  # velocity (1.5, 2), residual (1 + 1.5, 2)
    assert bucket.state[RESIDUAL][0].tolist() == [0.0, 2.0]
    assert bucket.state[VELOCITY][0].tolist() == [0.0, 2.0]


@both
def test_clip_norm_limits_what_is_accumulated(kind):
    gradients = [[[torch.tensor([30.0, 40.0]), torch.tensor([0.3, 0.4])]]]
    (((applied,), _),) = steps(kind, gradients, density=1.0, clip_norm=5.0)
    torch.testing.assert_close(applied, torch.tensor([3.0, 4.0, 0.3, 0.4]))
