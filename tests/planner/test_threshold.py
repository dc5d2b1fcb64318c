"""Fusion by size does what the peers do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.errors import InputError
from comm_plan.planner.threshold import caps
from comm_plan.tests.support.planning import planned


def _buckets(build, numels, dtypes=None, cap="ddp"):
    profile = build.profile([1e-3] * len(numels), numels, dtypes=dtypes)
    plan = planned(profile, build.network(), "threshold", caps_nbytes=caps(cap))
    order = {tensor.name: i for i, tensor in enumerate(profile.tensors)}
    return [[order[name] for name in bucket.tensors] for bucket in plan.buckets]


@given(st.lists(st.integers(1, 9 << 20), min_size=1, max_size=30))
def test_ddp_preset_makes_the_buckets_of_torch(build, numels):
    dist = pytest.importorskip("torch.distributed")
    torch = pytest.importorskip("torch")
    tensors = [torch.empty(n, device="meta") for n in numels]
    assign = dist._compute_bucket_assignment_by_size
    expected, _ = assign(tensors, [1 << 20, 25 << 20], [False] * len(tensors))
    assert _buckets(build, numels) == expected


SIZES = st.tuples(st.integers(1, 9 << 20), st.sampled_from(["float32", "bfloat16"]))


@given(st.lists(SIZES, min_size=1, max_size=30))
def test_dtypes_that_alternate_are_sent_in_the_buckets_of_torch_too(build, sizes):
    """Torch leaves open in which order those are sent that were never full."""
    dist = pytest.importorskip("torch.distributed")
    torch = pytest.importorskip("torch")
    tensors = [torch.empty(n, dtype=getattr(torch, d), device="meta") for n, d in sizes]
    expected, _ = dist._compute_bucket_assignment_by_size(
        tensors, [1 << 20, 25 << 20], [False] * len(tensors), list(range(len(tensors)))
    )
    assert sorted(_buckets(build, *zip(*sizes, strict=True))) == sorted(expected)


def test_each_dtype_has_its_own_small_first_bucket(build):
    mebi = 1 << 20
    dtypes = ["float32"] * 3 + ["float16"] * 3
    buckets = _buckets(build, [mebi] * 6, dtypes)
    assert buckets == [[0], [1, 2], [3], [4, 5]]


def test_horovod_preset_fuses_up_to_128_mib(build):
    assert _buckets(build, [16 << 20] * 5, cap="horovod") == [[0, 1], [2, 3], [4]]


def test_a_size_is_a_cap(build):
    assert _buckets(build, [10] * 5, cap="80") == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("cap", ["nccl", "0"])
def test_what_is_no_cap_is_refused(cap):
    with pytest.raises(InputError, match=r"is no cap: give ddp or horovod, or bytes"):
        caps(cap)
