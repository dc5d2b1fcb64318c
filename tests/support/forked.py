"""Ranks that are forks of one process, so that PyTorch is imported once for all.

    python -m comm_plan.tests.support.forked MODULE RANKS [ARGUMENT ...]

Every rank calls ``main`` of MODULE, with torchrun's variables. When one fails the
others are ended. An import takes far longer than what most of these programs do.

The ranks leave without an end of their interpreters.
PyTorch never frees the process group of a DDP model: gloo's threads outlive
``destroy_process_group()``, and would abort a process in which they still drop a tensor
while its interpreter ends (pytorch issue 190489).

Those that use a GPU (:data:`DEVICE`) are no forks, which cannot use one that was looked
at before.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from torch.multiprocessing import start_processes

from comm_plan.tests.support.harness import import_before_forking
from comm_plan.transports.launch import free_port

DEVICE, BACKEND = "TEST_DEVICE", "TEST_BACKEND"
"""The variables that say on which device the ranks work, and by which backend."""


def run(
    module: str,
    ranks: int,
    *arguments: object,
    cwd: Path | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run ``main`` of ``module`` on so many ranks; it must succeed.

    None of them outlives the call.
    """
    words = [__name__, module, *map(str, (ranks, *arguments))]
    with subprocess.Popen(
        [sys.executable, "-m", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        start_new_session=True,
    ) as started:  # fmt: skip
        try:
            said, complained = started.communicate(timeout=250)
        finally:
            with suppress(ProcessLookupError):  # all have ended
                os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 0, complained[-3000:]
    return subprocess.CompletedProcess(words, 0, said, complained)


def _rank(rank: int, ranks: int, port: int, words: list[str]) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    sys.argv = words
    import_module(words[0]).main()
    sys.stdout.flush()
    os._exit(0)


def _start(module: str, ranks: int, *arguments: str) -> None:
    """Import what the ranks need, and fork them."""
    on_cpu = os.environ.get(DEVICE, "cpu") == "cpu"
    if on_cpu:
        import_before_forking()
        import_module(module)
    method = "fork" if on_cpu else "spawn"
    job = (ranks, free_port(), [module, *arguments])
    start_processes(_rank, job, ranks, start_method=method)


if __name__ == "__main__":
    _start(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
