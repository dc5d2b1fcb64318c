"""Ranks that are forks of one process, so that PyTorch is imported once for all.

    python -m comm_plan.tests.support.forked MODULE RANKS [ARGUMENT ...]

Every rank calls ``main`` of MODULE, with torchrun's variables. When one fails the
others are ended. An import takes far longer than what most of these programs do.

The ranks leave without an end of their interpreters, as forks by multiprocessing do.
PyTorch never frees the process group of a DDP model: gloo's threads outlive
``destroy_process_group()``, and would abort a process in which they still drop a tensor
while its interpreter ends (pytorch issue 190489).
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from torch.multiprocessing import start_processes

from comm_plan.tests.support.harness import import_before_forking
from comm_plan.transports.launch import free_port


def run(
    module: str, ranks: int, *arguments: object, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``main`` of ``module`` on so many ranks; it must succeed."""
    words = [__name__, module, *map(str, (ranks, *arguments))]
    done = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True, text=True, timeout=250, check=False, cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def _rank(rank: int, ranks: int, port: int, program: ModuleType) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    program.main()


def _start(module: str, ranks: int, *arguments: str) -> None:
    """Import what the ranks need, and fork them."""
    import_before_forking()
    program = import_module(module)
    sys.argv = [module, *arguments]
    job = (ranks, free_port(), program)
    start_processes(_rank, job, ranks, start_method="fork")


if __name__ == "__main__":
    _start(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
