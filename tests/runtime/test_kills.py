"""Killed at any moment, however often: the end is that of an undisturbed run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from comm_plan.tests.runtime import killed_runs


def run(times):
    command = [sys.executable, "-m", killed_runs.__name__, "--times", str(times)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_trainings_killed_at_random_moments_end_bitwise_as_undisturbed_ones(request):
    done = run(request.config.getoption("kills"))
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
