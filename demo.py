"""The whole loop on one machine, as a newcomer would type it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from comm_plan import screen, units
from comm_plan.plans import RunRecord
from comm_plan.plans.document import make_folder

SOLVERS = ("threshold", "optimal")
NETWORK_SECONDS = 20
LARGEST_NBYTES = 4 * 1024 * 1024


def run(folder: Path, ranks: int) -> int:
    """Profile, benchmark the network, solve, train; leave all documents in ``folder``.

    Returns:
        0, or the exit code of the verb that failed and has said why.

    Raises:
        OutputError: ``folder`` cannot be made.
    """
    make_folder(folder)
    for title, words in _verbs(folder, ranks):
        screen.console().rule(title)
        screen.say(f"$ {shlex.join(['comm-plan', *words])}")
        command = [sys.executable, "-m", "comm_plan.cli", *words]
        code = subprocess.run(command, check=False).returncode
        if code:
            return code
    screen.console().rule("5. Was it worth it?")
    screen.show(_comparison(folder))
    screen.say(f"profile, network, plans and run records are in {folder}")
    return 0


def _verbs(folder: Path, ranks: int) -> Sequence[tuple[str, list[str]]]:
    profile, network = str(folder / "profile.json"), str(folder / "network.json")
    local = ["--local-ranks", str(ranks)]
    size = ["--max-bytes", str(LARGEST_NBYTES), "--budget", str(NETWORK_SECONDS)]
    verbs = [
        ("1. When is each gradient ready?",
         ["profile", "digits", "-o", profile, *local]),
        ("2. What do collectives cost on this machine?",
         ["benchmark-network", "-o", network, *size, *local]),
    ]  # fmt: skip
    for solver in SOLVERS:
        plan = str(folder / f"plan-{solver}.json")
        record = str(folder / f"run-{solver}.json")
        verbs += [
            (f"3. Which gradients should travel together? ({solver})",
             ["solve", profile, network, "-o", plan, "--solver", solver]),
            (f"4. Train by the plan ({solver}).",
             ["train", "digits", "--plan", plan, "-o", record, *local]),
        ]  # fmt: skip
    return verbs


def _comparison(folder: Path) -> Table:
    """Return predicted and measured times of the runs side by side."""
    table = Table()
    table.add_column("plan")
    for name in ("predicted", "measured", "accuracy"):
        table.add_column(name, justify="right")
    for solver in SOLVERS:
        record = RunRecord.load(folder / f"run-{solver}.json")
        table.add_row(
            solver,
            units.seconds(record.predicted_iteration_s or 0.0),
            units.seconds(record.iteration.median_s),
            units.percent(record.evaluations[-1].value),
        )
    return table
