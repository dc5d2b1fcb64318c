"""Ranks of every kind: threads for many cases, Gloo and MPI for some of the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from comm_plan.tests import harness

ENGINES = [
    "gloo",
    pytest.param(
        "mpi",
        marks=[
            pytest.mark.mpi,
            pytest.mark.skipif(harness.mpirun() is None, reason="mpirun is not here"),
        ],
    ),
]


@pytest.fixture(scope="session", params=ENGINES)
def run_on_engine(request: pytest.FixtureRequest) -> Callable[..., list]:
    """Return ``run(world_size, function, *arguments)`` on real processes."""

    def run(*call: object) -> list:
        return harness.real_ranks(request.param).run(*call)

    return run
