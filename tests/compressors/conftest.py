"""Compressors work with Numba's loops and without."""

import pytest

from comm_plan.compressors import loops


@pytest.fixture(params=["loops", "operations"])
def with_and_without_loops(request, monkeypatch):
    """Run the test with Numba's loops, and by PyTorch's operations."""
    if request.param == "loops":
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr(loops, "_compiled", lambda: None)
