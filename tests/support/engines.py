"""The real engines, as parameters of a test."""

from __future__ import annotations

import pytest

from comm_plan.tests.support.harness import mpirun

ENGINES = [
    pytest.param("gloo", marks=pytest.mark.slow),
    pytest.param(
        "mpi",
        marks=[
            pytest.mark.slow,
            pytest.mark.mpi,
            pytest.mark.skipif(mpirun() is None, reason="mpirun is not here"),
        ],
    ),
]
