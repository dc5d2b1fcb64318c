"""Programs and ranks that are forks of one process, which has PyTorch imported.

An import takes far longer than what most of these programs do. The process is started
for the first of them, and ends with the tests.

:func:`run` and :func:`torchrun` give every rank torchrun's variables; when one fails
the others are ended. The ranks leave without an end of their interpreters.
PyTorch never frees the process group of a DDP model: gloo's threads outlive
``destroy_process_group()``, and would abort a process in which they still drop a tensor
while its interpreter ends (pytorch issue 190489).

Those that use a GPU (:data:`DEVICE`) are no forks, which cannot use one that was looked
at before.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from torch.multiprocessing import start_processes

from comm_plan.transports.launch import rank_variables, reserved_port

DEVICE, BACKEND = "TEST_DEVICE", "TEST_BACKEND"
"""The variables that say on which device the ranks work, and by which backend."""

TIMEOUT_S = 250.0

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["comm_plan.tests.support.imported"])


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
    words = [module, *map(str, arguments)]
    job = (ranks, _run_main, words, [module])
    return _succeeded(_start_ranks, words, job, cwd, environment)


def torchrun(
    path: Path,
    ranks: int,
    *arguments: object,
    imports: Sequence[str] = (),
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the program ``path`` on so many ranks; it must succeed.

    Args:
        path: of the program.
        ranks: how many.
        arguments: of the program.
        imports: what it imports that takes long; done once.
        cwd: the folder that it runs in.
    """
    words = [str(path), *map(str, arguments)]
    job = (ranks, _run_script, words, imports)
    return _succeeded(_start_ranks, words, job, cwd, {})


def script(
    path: Path, *arguments: object, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the program ``path``, which must succeed."""
    words = [str(path), *map(str, arguments)]
    return _succeeded(_run_script, words, (words,), cwd, {})


def command(
    *arguments: object, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``comm-plan``, which must succeed."""
    words = ["comm_plan.cli", *map(str, arguments)]
    return _succeeded(_run_main, words, (words,), cwd, {})


def _succeeded(
    job: Callable[..., None],
    words: Sequence[str],
    arguments: tuple[object, ...],
    cwd: Path | None,
    environment: Mapping[str, str],
) -> subprocess.CompletedProcess[str]:
    """Run ``job``, and whatever it starts, to its end."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = (Path(folder) / name for name in ("out", "err"))
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        process = _FORKS.Process(
            target=_lead, args=(job, arguments, cwd or Path.cwd(), variables, out, err)
        )
        process.start()
        assert process.pid is not None
        try:
            process.join(TIMEOUT_S)
        finally:
            process.kill()
            with suppress(ProcessLookupError):  # all have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.join()
        said, complained = out.read_text(), err.read_text()
    assert process.exitcode == 0, complained[-3000:]  # -9: it took too long
    return subprocess.CompletedProcess(words, 0, said, complained)


def _lead(
    job: Callable[..., None],
    arguments: tuple[object, ...],
    cwd: Path,
    variables: Mapping[str, str],
    out: Path,
    err: Path,
) -> None:
    """Do ``job`` as a process of its own would."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    for number, path in ((1, out), (2, err)):
        opened = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, number)
    job(*arguments)
    sys.stdout.flush()


def _run_script(words: Sequence[str]) -> None:
    sys.argv = list(words)
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")


def _run_main(words: Sequence[str]) -> None:
    sys.argv = list(words)
    import_module(words[0]).main()


def _start_ranks(
    ranks: int,
    main: Callable[[Sequence[str]], None],
    words: Sequence[str],
    imports: Sequence[str],
) -> None:
    """Import what the ranks need, and fork them, each to call ``main(words)``."""
    on_cpu = os.environ.get(DEVICE, "cpu") == "cpu"
    if on_cpu:
        for module in imports:
            import_module(module)
    method = "fork" if on_cpu else "spawn"
    with reserved_port() as port:
        job = (ranks, port, main, words)
        start_processes(_rank, job, ranks, start_method=method)


def _rank(
    rank: int,
    ranks: int,
    port: int,
    main: Callable[[Sequence[str]], None],
    words: Sequence[str],
) -> None:
    os.environ |= rank_variables(rank, ranks, port)
    os.environ |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}
    main(words)
    sys.stdout.flush()
    os._exit(0)
