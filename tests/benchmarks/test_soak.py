"""A long training under stress neither hangs nor grows."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from comm_plan.benchmarks.soak import GROWTH_NBYTES, SAMPLES, Sample, grew, soak

STEADY = [Sample(step, 100 << 20, 30, 9) for step in range(SAMPLES)]


@pytest.mark.parametrize(
    ("field", "by"),
    [("rss_nbytes", 4 * GROWTH_NBYTES), ("descriptors", 8), ("threads", 8)],
)
def test_what_grows_is_noticed(field, by):
    assert not grew(STEADY)
    growing = [
        replace(one, **{field: getattr(one, field) + by * one.step // SAMPLES})
        for one in STEADY
    ]
    assert grew(growing)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(7200)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_long_training_under_stress_neither_hangs_nor_grows(request):
    endured = soak(request.config.getoption("soak_s"))
    assert endured.suspended
    assert not endured.grew
