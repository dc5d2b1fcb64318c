"""Ranks started on this host: their environment, their ends, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from comm_plan.errors import InputError, RunError
from comm_plan.tests.support.harness import mpirun
from comm_plan.transports import launch
from comm_plan.transports.launch import (
    end_processes,
    reserved_port,
    run_local,
    start_process,
)

needs_mpirun = pytest.mark.skipif(mpirun() is None, reason="mpirun is not here")

SAVE_ENVIRONMENT = """
import json, os, sys
rank = os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
json.dump(dict(os.environ), open(f"{sys.argv[1]}/{rank}", "w"))
"""
END_OF_RANK = """
import os, signal, sys
ends = dict(enumerate(sys.argv[1:]))
end = ends[int(os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"])]
if end == "wait":
    signal.pause()
if end.startswith("SIG"):
    os.kill(os.getpid(), getattr(signal, end))
sys.exit(int(end))
"""


def python(code, *arguments):
    return [sys.executable, "-S", "-c", code, *map(str, arguments)]


def environments(folder: Path):
    files = sorted(folder.iterdir())
    return [json.loads(file.read_text()) for file in files]


def test_the_ranks_get_torchruns_variables(tmp_path):
    assert run_local(python(SAVE_ENVIRONMENT, tmp_path), 3) == 0
    ranks = environments(tmp_path)
    assert [rank["RANK"] for rank in ranks] == ["0", "1", "2"]
    assert [rank["LOCAL_RANK"] for rank in ranks] == ["0", "1", "2"]
    assert {rank["WORLD_SIZE"] for rank in ranks} == {"3"}
    assert {rank["LOCAL_WORLD_SIZE"] for rank in ranks} == {"3"}
    assert {rank["MASTER_ADDR"] for rank in ranks} == {"127.0.0.1"}
    assert len({rank["MASTER_PORT"] for rank in ranks}) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reserved on Linux")
def test_a_reserved_port_is_for_who_asks_for_it():
    with reserved_port() as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", port))
        with (
            socket.create_server(("", port)) as rank_0,
            socket.create_connection(("127.0.0.1", port)) as rank_1,
        ):
            accepted, address = rank_0.accept()
            accepted.close()
            assert address == rank_1.getsockname()


@pytest.mark.parametrize("ours", [{}, {"OMP_NUM_THREADS": ""}])
def test_the_ranks_share_the_cores(tmp_path, monkeypatch, ours):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launch, "cores", lambda: 7)
    run_local(python(SAVE_ENVIRONMENT, tmp_path), 3)
    assert {rank["OMP_NUM_THREADS"] for rank in environments(tmp_path)} == {"2"}


def test_the_users_number_of_threads_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    run_local(python(SAVE_ENVIRONMENT, tmp_path), 1)
    assert environments(tmp_path)[0]["OMP_NUM_THREADS"] == "5"


@pytest.mark.parametrize(
    ("ends", "code"), [("0 0", 0), ("2 2", 2), ("0 1 0", 1), ("7", 7)]
)
def test_the_exit_code_of_a_rank_is_passed_on(ends, code):
    ends = ends.split()
    assert run_local(python(END_OF_RANK, *ends), len(ends)) == code


def test_a_killed_rank_is_named_with_its_signal(monkeypatch):
    monkeypatch.setattr(launch, "_GRACE_S", 0.0)
    with pytest.raises(RunError, match="rank 1 was killed by SIGKILL"):
        run_local(python(END_OF_RANK, "wait", "SIGKILL", "wait"), 3)
    with pytest.raises(RunError, match=r"rank 0 was killed by SIGSEGV$"):
        run_local(python(END_OF_RANK, "SIGSEGV", "wait"), 2)


def test_a_killed_rank_counts_more_than_those_that_noticed():
    with pytest.raises(RunError, match="rank 2 was killed by SIGKILL"):
        launch._wait(
            {
                f"rank {rank}": ended(python(END_OF_RANK, *ends), rank)
                for rank, ends in enumerate([("1",), ("0", "1"), ("0", "0", "SIGKILL")])
            }
        )


def ended(argv, rank):
    process = start_process(argv, os.environ | {"RANK": str(rank)})
    process.wait()
    return process


def test_nothing_is_left_after_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "_GRACE_S", 0.0)
    started = []
    monkeypatch.setattr(
        launch,
        "start_process",
        lambda *a, **k: started.append(start_process(*a, **k)) or started[-1],
    )
    assert run_local(python(END_OF_RANK, "wait", "3", "wait"), 3) == 3
    assert len(started) == 3
    assert all(process.returncode is not None for process in started)


def test_a_process_that_ignores_sigterm_is_killed(monkeypatch):
    monkeypatch.setattr(launch, "_TERMINATE_S", 0.1)
    stubborn = "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True)\n"
    process = start_process(
        python(stubborn + "while True: signal.pause()"),
        os.environ,
        stdout=subprocess.PIPE,
    )
    process.stdout.readline()
    end_processes([process])
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="no way to know it")
def test_nobody_waits_for_a_stopped_rank(monkeypatch):
    """Stopped ranks do not react to SIGTERM; they are let go on for that."""
    monkeypatch.setattr(launch, "_GRACE_S", 1000.0)
    monkeypatch.setattr(launch, "_TERMINATE_S", 1000.0)
    assert run_local(python(END_OF_RANK, "SIGSTOP", "3", "0"), 3) == 3


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="no way to know it")
def test_a_rank_that_ends_meanwhile_is_not_stopped(monkeypatch):
    ended = start_process(python("pass"), os.environ)
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    with monkeypatch.context() as before:
        before.setattr(ended, "poll", lambda: None)  # as a moment ago
        assert not launch._is_stopped(ended)
    assert ended.wait() == 0
    assert not launch._is_stopped(ended)


def test_nobody_waits_where_input_was_refused(monkeypatch):
    monkeypatch.setattr(launch, "_GRACE_S", 1000.0)
    code = InputError.exit_code
    assert run_local(python(END_OF_RANK, "wait", code, "wait"), 3) == code


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_no_rank_outlives_a_killed_parent():
    run_two = (
        "import sys; from comm_plan.transports.launch import run_local\n"
        "run_local(sys.argv[1:], 2)"
    )
    rank = python("import os, signal; os.write(1, b'up\\n'); signal.pause()")
    parent = subprocess.Popen(
        [sys.executable, "-c", run_two, *rank], stdout=subprocess.PIPE
    )
    with parent:
        started = [parent.stdout.readline() for _ in range(2)]
        parent.kill()
        # The pipe ends when its last writer has: the ranks hold it open too.
        assert parent.stdout.read() == b""
    assert started == [b"up\n"] * 2


def test_ctrl_c_ends_the_ranks_without_a_word():
    """It reaches the whole process group; a Python that starts would show where.

    Where the tests run in the background, processes ignore it unless told otherwise.
    """
    run_two = (
        "import signal, sys; from comm_plan.transports.launch import run_local\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try: run_local(sys.argv[1:], 2)\n"
        "except KeyboardInterrupt: sys.exit(130)"
    )
    rank = python("import os, time; os.write(1, b'up\\n'); time.sleep(1000)")
    with subprocess.Popen(
        [sys.executable, "-c", run_two, *rank],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as launcher:  # fmt: skip
        assert [launcher.stdout.readline() for _ in range(2)] == [b"up\n"] * 2
        os.killpg(launcher.pid, signal.SIGINT)
        assert launcher.communicate(timeout=200) == (b"", b"")
    assert launcher.returncode == 130


@pytest.mark.mpi
@needs_mpirun
def test_mpirun_starts_the_ranks_and_passes_their_exit_code_on(tmp_path):
    assert run_local(python(SAVE_ENVIRONMENT, tmp_path), 3, "mpi") == 0
    sizes = {rank["OMPI_COMM_WORLD_SIZE"] for rank in environments(tmp_path)}
    assert sizes == {"3"}
    assert run_local(python(END_OF_RANK, "0", "2"), 2, "mpi") == 2


def test_without_mpirun_the_remedy_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"pip install 'comm-plan\[mpi\]'"):
        run_local(["true"], 2, "mpi")
