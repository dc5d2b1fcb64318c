"""In a user's own program too, all ranks learn which one died, and end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from comm_plan.tests.support.harness import mpirun
from comm_plan.transports.launch import (
    rank_variables,
    reserved_port,
    run_local,
    wait_until_ended,
)

PROGRAM = Path(__file__).parent / "users_loop.py"
RANKS = 3
LATEST_S = 100  # on a machine that is busy with other things
CAUSES = {
    "killed": "rank 2 died",
    "raises": "rank 2 failed: my data is broken",
    "stopped": "rank 2 is silent",
    "leaves": "rank 2 has ended while others go on",
}


def run(fate, place):
    """Return exit codes and errors of the ranks but the last."""
    with reserved_port() as port:
        processes = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM), "gloo", fate, place],
                env={**os.environ, **rank_variables(rank, RANKS, port)},
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        try:
            wait_until_ended(processes[:-1], LATEST_S)
        finally:
            for process in processes:
                process.kill()
    errors = [process.communicate()[1] for process in processes]
    return [process.returncode for process in processes[:-1]], errors[:-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fate", "place"),
    [
        ("killed", "backward"),
        ("killed", "code"),
        ("killed", "collective"),
        ("raises", "backward"),
        ("raises", "code"),
        ("stopped", "backward"),
        ("leaves", "backward"),
    ],
)
def test_every_rank_names_the_one_that_went_wrong(fate, place):
    codes, errors = run(fate, place)
    assert all(codes), errors
    for error in errors:
        assert CAUSES[fate] in error


@pytest.mark.slow
def test_a_program_that_ends_well_ends_without_a_word():
    codes, errors = run("none", "backward")
    assert codes == [0, 0], errors
    assert not any("error" in error for error in errors)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.skipif(mpirun() is None, reason="mpirun is not here")
@pytest.mark.parametrize(
    ("fate", "place", "said"),
    [
        ("stopped", "collective", "error: rank 2 is silent"),
        ("leaves", "backward", "error: rank 2 has ended while others go on"),
        ("raises", "code", "ValueError: my data is broken"),
        ("none", "backward", None),
    ],
)
def test_under_mpi_too(fate, place, said, capfd):
    """Mpirun sees a killed rank by itself."""
    command = [sys.executable, str(PROGRAM), "mpi", fate, place]
    code = run_local(command, RANKS, "mpi")
    errors = capfd.readouterr().err
    assert (code == 0) == (said is None), errors
    assert said in errors if said else "error" not in errors
