"""Starting the ranks of a run on this host.

The children get torchrun's variables (for the backend mpi: what mpirun sets), so a
command behaves as if torchrun or mpirun had started it.

When a rank fails, the others are given time to end by themselves: they find out which
rank it was, see :mod:`~comm_plan.transports.liveness`. Nobody waits for one that is
stopped, nor for any once a rank has refused its input, which others may refuse too. No
child outlives this process, on Linux not even when this process is killed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from comm_plan.errors import InputError, RunError
from comm_plan.transports.backends import find_backend

_GRACE_S = 20.0  # for the other ranks after the first has failed
_TERMINATE_S = 3.0  # between SIGTERM and SIGKILL
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1

STARTED = "COMM_PLAN_LOCAL_RANKS"
"""Set for ranks that :func:`run_local` started: they were asked for in the same words
as their launcher, and must not launch again."""

Process = subprocess.Popen[bytes]
Commands = dict[str, tuple[Sequence[str], dict[str, str]]]
"""By name: a command, and the variables it gets beside this process's own."""


def run_local(argv: Sequence[str], ranks: int, backend: str = "gloo") -> int:
    """Run the command ``argv`` as ``ranks`` processes of this host and wait for them.

    ``OMP_NUM_THREADS`` is set to this process's cores / ranks unless it says a number.

    Args:
        argv: a command, such as ``[sys.executable, "-m", "comm_plan.cli", ...]``.
        ranks: number of processes.
        backend: its launcher starts them: torchrun's way, or mpirun.

    Returns:
        0, or the exit code of the first rank that failed, which has said why. mpirun
        names the rank itself and passes its exit code on.

    Raises:
        InputError: an unknown backend, or there is no mpirun.
        RunError: the first rank that failed was killed by a signal.
    """
    environment = dict(os.environ)
    if not environment.get("OMP_NUM_THREADS"):  # empty, libgomp takes all cores
        environment["OMP_NUM_THREADS"] = str(max(1, cores() // ranks))
    environment[STARTED] = str(ranks)
    launcher = LAUNCHERS[find_backend(backend).launcher]
    children: dict[str, Process] = {}
    with reserved_port() as port:
        try:
            for name, (command, variables) in launcher(argv, ranks, port).items():
                children[name] = start_process(command, environment | variables)
            return _wait(children)
        finally:
            end_processes(children.values())


def start_process(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdout: IO[bytes] | None = None,
    stderr: IO[bytes] | None = None,
) -> Process:
    """Start a process that on Linux ends (SIGTERM) when this one ends.

    Ctrl-C reaches this process only, which ends the others: each would print where it
    was. Call it from a thread that lives as long as the process shall.
    """
    return subprocess.Popen(
        argv,
        env=environment,
        stdout=stdout,
        stderr=stderr,
        preexec_fn=_prepare(os.getpid()),
    )


def end_processes(processes: Collection[Process]) -> None:
    """End those that still run, or are stopped: SIGTERM, after 3 s SIGKILL."""
    for process in processes:
        process.terminate()
        process.send_signal(signal.SIGCONT)
    wait_until_ended(processes, _TERMINATE_S)
    for process in processes:
        process.kill()
        process.wait()


def free_port() -> int:
    """Return a TCP port that is free on this host now."""
    with socket.create_server(("", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a free TCP port of this host that on Linux goes to nobody meanwhile.

    Only who asks for this very port gets it, as rank 0 does once it has imported
    PyTorch, seconds later.
    """
    with socket.socket() as holder:
        if sys.platform == "linux":
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("", 0))  # and never listens, so others may
            yield holder.getsockname()[1]
        else:
            yield free_port()


def rank_variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return what torchrun sets for one of ``ranks`` that meet at ``port`` here."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _torchrun(argv: Sequence[str], ranks: int, port: int) -> Commands:
    """Return one process for each rank."""
    return {
        f"rank {rank}": (argv, rank_variables(rank, ranks, port))
        for rank in range(ranks)
    }


WAITS_ASLEEP = {
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_threads_pthreads_yield_strategy": "nanosleep",
}
"""What makes Open MPI sleep where it would spin. Ranks that share cores with what they
compute, or with anything else, otherwise wait much longer for each other: 4 ranks on 2
cores beside 4 busy processes 4.7 against 0.1 ms for 32 bytes."""


def _mpirun(argv: Sequence[str], ranks: int, _port: int) -> Commands:
    """Return the one process mpirun, which starts the ranks.

    Raises:
        InputError: there is no mpirun.
    """
    beside_python = str(Path(sys.executable).parent)
    mpirun = shutil.which("mpirun", path=beside_python) or shutil.which("mpirun")
    if mpirun is None:
        raise InputError(
            "the backend mpi needs mpirun, which is neither beside Python nor on PATH: "
            "install it with `pip install 'comm-plan[mpi]'`"
        )
    # Bound to one core, a rank could not compute and communicate at the same time.
    options = ["--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    waits = {name: os.environ.get(name, value) for name, value in WAITS_ASLEEP.items()}
    return {"mpirun": ([mpirun, *options, "-n", str(ranks), *argv], waits)}


LAUNCHERS: dict[str, Callable[[Sequence[str], int, int], Commands]] = {
    "torchrun": _torchrun,
    "mpirun": _mpirun,
}
"""The processes to start, by name, for ``argv`` as so many ranks, and their port."""


def _wait(children: Mapping[str, Process]) -> int:
    """Wait for all; after the first failure no longer than the others need to end."""
    while all(child.poll() in (None, 0) for child in children.values()):
        if wait_until_ended(children.values(), _POLL_S):
            break
    codes = {name: child.poll() or 0 for name, child in children.items()}
    # Ranks that failed between two looks: a killed one is not a consequence.
    name = min(codes, key=lambda name: (codes[name] >= 0, codes[name] == 0))
    # Who refuses its input has said so; nobody has to find out who it was.
    grace_s = 0.0 if codes[name] == InputError.exit_code else _GRACE_S
    deadline_s = time.monotonic() + grace_s
    while time.monotonic() < deadline_s:
        running = [child for child in children.values() if not _is_stopped(child)]
        if wait_until_ended(running, _POLL_S):
            break
    if codes[name] < 0:
        killer = signal.Signals(-codes[name])
        hint = ": out of memory?" if killer == signal.SIGKILL else ""
        raise RunError(f"{name} was killed by {killer.name}{hint}")
    return codes[name]


def wait_until_ended(processes: Collection[Process], timeout_s: float) -> bool:
    """Wait for all, at most ``timeout_s``; return whether all have ended."""
    deadline_s = time.monotonic() + timeout_s
    for process in processes:
        try:
            process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
    return True


def _is_stopped(process: Process) -> bool:
    """Return whether ``process`` got SIGSTOP; macOS tells since Python 3.13."""
    if process.returncode is not None or not hasattr(os, "waitid"):
        return False
    # Asked for stops alone, who has just ended is no child of ours.
    look = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    state = os.waitid(os.P_PID, process.pid, look)
    return state is not None and state.si_code == os.CLD_STOPPED


def cores() -> int:
    """Return how many cores this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _prepare(parent: int) -> Callable[[], None]:
    """Return what a new child calls: it is to be ended by ``parent``, or with it."""
    # Loaded here: the child may call little.
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

    return prepare
