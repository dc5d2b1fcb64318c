"""What sums of other formats take longer is measured beside float32."""

import pytest
import torch

from comm_plan.commbench import summing as module
from comm_plan.commbench.summing import (
    DTYPES,
    LONG_NBYTES,
    NBYTES,
    QUICK_S,
    fitting_nbytes,
    summing,
)
from comm_plan.commbench.sweep import measure
from comm_plan.plans.compression import METHODS
from comm_plan.tests.support.harness import ThreadTransport, run_ranks

LATER_S = 2e-3


def test_a_slow_format_is_found_and_all_ranks_agree(monkeypatch):
    sizes = set()

    def took(transport, run):
        run()
        (buffer,) = run.args
        sizes.add(buffer.nbytes)
        return 1e-3 + LATER_S * (buffer.dtype == torch.float16)

    monkeypatch.setattr(module, "elapsed_s", took)
    first, second = run_ranks(2, lambda ranks: summing(ranks, 1000))
    assert first == second
    assert set(first) == set(DTYPES)
    assert first.pop("float16") == pytest.approx(LATER_S / 1000)
    assert set(first.values()) == {0.0}
    assert sizes == {1000}


def test_all_that_compressors_sum_is_measured():
    for spec, collective in METHODS.values():
        assert {spec.summed_as("float32", collective)} <= {"float32", *DTYPES}
    assert DTYPES["bfloat16"] == torch.bfloat16


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({4: 0.0, NBYTES: 9.0, 2 * NBYTES: 18.0}, NBYTES),  # a slow link
        ({4: 0.0, 2 * NBYTES: QUICK_S, 4 * NBYTES: 2 * QUICK_S}, 2 * NBYTES),
        ({LONG_NBYTES: 0.0, 2 * LONG_NBYTES: 0.0}, LONG_NBYTES),
        ({4: 0.0, 64: 0.0}, 64),  # no others were asked for
        ({16 * NBYTES: 1.0, 8 * NBYTES: 1.0}, 8 * NBYTES),
    ],
)
def test_formats_are_compared_by_long_messages_that_are_quick(measured, expected):
    assert fitting_nbytes(measured.items()) == expected


def test_a_sweep_compares_formats_at_a_size_that_it_measured(monkeypatch):
    sizes = []
    real = ThreadTransport.all_reduce
    monkeypatch.setattr(
        ThreadTransport,
        "all_reduce",
        lambda self, tensor, *rest: (
            sizes.append((tensor.dtype, tensor.nbytes)) or real(self, tensor, *rest)
        ),
    )
    monkeypatch.setattr(module, "ITERATIONS", 1)
    networks = run_ranks(2, measure, ("allreduce",), (4, 512), 0.0)
    assert {n for dtype, n in sizes if dtype == torch.float16} == {512}
    assert set(networks[0].collectives["allreduce"].summing) == set(DTYPES)
