"""The real engines, as parameters of a test.

``ANYWHERE`` has gloo on a GPU too, which all ranks share, where there is one: for tests
whose programs keep their tensors on the device of the transport.
"""

from __future__ import annotations

import pytest
import torch

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

ANYWHERE = list(ENGINES)
if torch.cuda.is_available():
    marks = [pytest.mark.slow, pytest.mark.gpu]
    ANYWHERE.append(pytest.param("gloo-cuda", marks=marks))
