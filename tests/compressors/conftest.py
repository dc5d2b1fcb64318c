"""Compressors work with Numba's loops and without."""

import pytest

from comm_plan.compressors import loops
from comm_plan.plans.compression import KINDS


@pytest.fixture(params=["loops", "operations"])
def with_and_without_loops(request, monkeypatch):
    """Run the test with Numba's loops, and by PyTorch's operations."""
    if request.param == "loops":
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr(loops, "_compiled", lambda: None)


@pytest.fixture(params=["a tensor at a time", "at once, as on a GPU"])
def as_on_a_gpu_too(request, monkeypatch):
    """Run the test with what a CPU does, and with what is made for a GPU."""
    if request.param != "a tensor at a time":
        for spec in KINDS.values():
            if spec.on_gpu is not None:
                monkeypatch.setattr(spec, "implementation", spec.on_gpu)
