"""The real commands, run on emulated hosts."""

import argparse
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from comm_plan.benchmarks.hosts import EmulatedHosts, supported

ANY_ACCURACY = ("--accuracy", "loss")
"""``auto`` and ``tune`` may use every method: their choice by time is judged."""


def comm_plan(*arguments: object) -> list[str]:
    """Return the command line of a verb."""
    return module("comm_plan.cli", *arguments)


def module(name: str, *arguments: object) -> list[str]:
    """Return the command line that runs a module."""
    return [sys.executable, "-m", name, *map(str, arguments)]


def run_verb(*arguments: object, folder: Path | None = None) -> None:
    """Run a verb, in ``folder`` if one is given; what it says is shown if it fails."""
    done = subprocess.run(
        comm_plan(*arguments), cwd=folder, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(done.stderr)


def hosts_parser(
    doc: str | None, rounds: int, iterations: int = 4
) -> argparse.ArgumentParser:
    """Return the options that benchmarks of variants on emulated hosts share.

    Args:
        doc: of the benchmark; its first line describes it.
        rounds: how often the variants take turns unless asked otherwise.
        iterations: of a variant's turn unless asked otherwise.
    """
    description = (doc or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rate", default="1gbit", help="of each link")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument(
        "--iterations", type=int, default=iterations, help="of each turn"
    )
    return parser


def require_hosts() -> None:
    """Exit in one line where this machine cannot have emulated hosts."""
    reason = supported()
    if reason is not None:
        sys.exit(f"no emulated hosts here: {reason}")


def run_all(hosts: EmulatedHosts, argv: Sequence[str]) -> list[str]:
    """Run ``argv`` on all hosts and return what each printed, however long it takes.

    A rank that dies or is silent ends the others.

    Raises:
        RuntimeError: it failed on one.
    """
    results = hosts.run(argv, timeout_s=math.inf)
    failed = [
        f"rank {rank}: {result.stderr[-1000:]}"
        for rank, result in enumerate(results)
        if result.returncode
    ]
    if failed:
        raise RuntimeError("\n".join(failed))
    return [result.stdout for result in results]


def solve(folder: Path, name: str, *options: object) -> Path:
    """Return the plan that ``options`` make of the folder's documents."""
    plan = folder / f"{name}.json"
    documents = folder / "profile.json", folder / "network.json"
    argv = comm_plan("solve", *documents, "-o", plan, *options)
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"plan {name}: {done.stderr[-2000:]}")
    return plan
