"""What sums of other formats take longer is measured beside float32."""

import time

import pytest
import torch

from comm_plan.commbench import summing as module
from comm_plan.commbench.summing import DTYPES, summing
from comm_plan.plans.compression import METHODS
from comm_plan.tests.support.harness import ThreadTransport, run_ranks

LATER_S = 2e-3


def test_a_slow_format_is_found_and_all_ranks_agree(monkeypatch):
    sizes = set()
    real = ThreadTransport.all_reduce

    def slow(self, tensor, operation="sum"):
        sizes.add(tensor.nbytes)
        if tensor.dtype == torch.float16:
            time.sleep(LATER_S)
        real(self, tensor, operation)

    monkeypatch.setattr(ThreadTransport, "all_reduce", slow)
    first, second = run_ranks(2, lambda ranks: summing(ranks, 1003))
    assert first == second
    assert set(first) == set(DTYPES)
    assert first["float16"] == pytest.approx(LATER_S / 1000, rel=0.8)
    assert first["float16"] > 4 * max(first["bfloat16"], first["int8"])
    assert sizes == {1000}


def test_all_that_compressors_sum_is_measured():
    for spec, collective in METHODS.values():
        assert {spec.summed_as("float32", collective)} <= {"float32", *DTYPES}
    assert DTYPES["bfloat16"] == torch.bfloat16


def test_no_buffer_is_longer_than_it_need_be(monkeypatch):
    monkeypatch.setattr(module, "NBYTES", 64)
    monkeypatch.setattr(module, "ITERATIONS", 1)
    sizes = set()
    real = ThreadTransport.all_reduce
    monkeypatch.setattr(
        ThreadTransport,
        "all_reduce",
        lambda self, tensor: sizes.add(tensor.nbytes) or real(self, tensor),
    )
    run_ranks(2, lambda ranks: summing(ranks, 2**30))
    assert sizes == {64}
