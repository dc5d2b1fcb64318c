"""The whole loop on one machine, as a newcomer would type it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from comm_plan import screen
from comm_plan.errors import RunError
from comm_plan.plans import Plan
from comm_plan.plans.files import make_folder
from comm_plan.transports.launch import cores

LINK = "100mbit"
"""What the ranks of this machine are held back to: between hosts it would be real."""

SOLVERS = ("threshold", "optimal", "lags", "auto")
"""What is compared with the tuned plan; the first is what PyTorch DDP does."""

TARGET = 0.97
"""Held-out accuracy: the demo shows how long each training takes to reach it."""

COLLECTIVES = "allreduce,allgather,gtopk,two_pass"
"""What the plans that are compared may travel by."""

NETWORK_SECONDS = 20
TUNING_SECONDS = 100
TUNING_SEEDS = 2
BATCH = 128
"""Samples of a rank: backward takes long enough to hide messages behind it."""

EPOCHS_A_RANK = 25
"""Any number of ranks takes some 250 steps so; dense training reaches :data:`TARGET` in
about 90."""

LARGEST_NBYTES = 1024 * 1024


def a_core_each() -> int:
    """Return how many ranks have a core each here, 2 to 4: so it is on a cluster."""
    return min(4, max(2, cores()))


def run(folder: Path, ranks: int) -> int:
    """Profile, benchmark the network, solve, tune, train; leave all in ``folder``.

    Returns:
        0, or the exit code of the verb that failed and has said why.

    Raises:
        OutputError: ``folder`` cannot be made.
        RunError: a verb was ended by a signal.
    """
    make_folder(folder)
    screen.say(
        f"{ranks} ranks on this machine, each behind an emulated link of {LINK}: every "
        "collective really runs and is then held back to what such a link would take"
    )
    for title, words in _verbs(folder, ranks):
        screen.console().rule(title)
        screen.say(f"$ {shlex.join(['comm-plan', *words])}")
        command = [sys.executable, "-m", "comm_plan", *words]
        code = subprocess.run(command, check=False).returncode
        if code < 0:
            raise RunError(f"comm-plan {words[0]} was ended by signal {-code}")
        if code:
            return code
    screen.say(f"documents and report.html are in {folder}")
    return 0


def _verbs(folder: Path, ranks: int) -> Iterator[tuple[str, list[str]]]:
    profile, network = str(folder / "profile.json"), str(folder / "network.json")
    plans = {solver: str(folder / f"plan-{solver}.json") for solver in SOLVERS}
    tuning = folder / "tuning"
    local = ["--local-ranks", str(ranks)]
    behind = [*local, "--emulate-link", LINK]
    digits = ["digits", "--batch-size", str(BATCH)]
    size = ["--max-bytes", str(LARGEST_NBYTES), "--budget", str(NETWORK_SECONDS)]
    size += ["--collectives", COLLECTIVES]
    yield (
        "1. When is each gradient ready, and what do compressors cost?",
        ["profile", *digits, "-o", profile, *behind],
    )
    yield (
        "2. What do collectives cost on this network?",
        ["benchmark-network", "-o", network, *size, *behind],
    )
    for solver, plan in plans.items():
        yield (
            f"3. Which gradients travel together, and how? ({solver})",
            [
                "solve", profile, network, "-o", plan, "--solver", solver,
                "--momentum-correction",
            ],
        )  # fmt: skip
    yield (
        "4. Which plan is best when it really runs, and learns as well as dense?",
        [
            "tune", *digits, "-o", str(tuning), "--objective", "loss",
            "--profile", profile, "--network", network,
            "--budget", str(TUNING_SECONDS), "--seeds", str(TUNING_SEEDS), *behind,
        ],
    )  # fmt: skip
    tuned = folder / "plan-tuned.json"
    Plan.load(tuning / "plan.json").save(tuned)
    yield (
        "5. Was it worth it?",
        [
            "compare", *digits, *plans.values(), str(tuned), "-o", str(folder),
            "--target", str(TARGET), "--epochs", str(EPOCHS_A_RANK * ranks), *behind,
        ],
    )  # fmt: skip
    yield (
        "6. All of it on one page",
        ["report", str(folder), str(tuning), "-o", str(folder / "report.html")],
    )
