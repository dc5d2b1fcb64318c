"""How well half a minute of a machine tells of its next: no prediction is better.

A rank on each core runs iterations that meet no other, for minutes. Of each second it
is asked how far the median of a stretch as long as a profile takes lies from the median
of the minute after it: of four windows within the stretch, as the profiler has them,
of twelve that take no longer together, and of the whole stretch. Writes a table
(Markdown) and the figures (JSON) to ``benchmarks/results``.

    python -m comm_plan.benchmarks.steadiness
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from comm_plan.arrays import FloatArray
from comm_plan.benchmarks import tables
from comm_plan.benchmarks.commands import module
from comm_plan.profiler.timings import Trial
from comm_plan.transports.launch import cores, run_local
from comm_plan.transports.local import LocalTransport
from comm_plan.transports.ranks import place
from comm_plan.workloads import load

TICK_S = 0.2
"""Iterations are known by their median in each of these."""

STRETCH, FOLLOWING = 125, 300
"""Ticks of what is looked at, and of what it shall tell."""

STEP = 5
"""Ticks from one question to the next."""

LEAST_MINUTES = 3
"""A busy machine's ticks last longer; fewer might not suffice for one question."""

WAYS = {
    "four windows": [*range(0, 2), *range(41, 43), *range(82, 84), *range(123, 125)],
    "twelve windows": [round(tick) for tick in np.linspace(0, STRETCH - 1, 12)],
    "all of it": [*range(STRETCH)],
}
"""The ticks of a stretch whose median is taken."""


def main() -> None:
    """Measure and write the results, or be one rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--into", type=Path, help="folder of what ranks measure")
    arguments = parser.parse_args()
    if arguments.minutes < LEAST_MINUTES:
        parser.error(f"--minutes {arguments.minutes:g}: at least {LEAST_MINUTES}")
    if arguments.into is not None:
        ticks = measured(arguments.minutes * 60)
        (arguments.into / f"{place().rank}.json").write_text(json.dumps(ticks))
        return
    with tempfile.TemporaryDirectory() as folder:
        asked = ("--minutes", arguments.minutes, "--into", folder)
        if code := run_local(module(__spec__.name, *asked), cores()):
            sys.exit(code)
        files = sorted(Path(folder).iterdir())
        of_cores = {path.stem: json.loads(path.read_text()) for path in files}
    rows = [
        [core, way, *(f"{share:.1%}" for share in shares(errors(ticks, windows)))]
        for core, ticks in of_cores.items()
        for way, windows in WAYS.items()
    ]
    parts = [
        "# What half a minute tells of the next minute",
        tables.markdown(["core", "from", "median", "9 of 10", "worst"], rows),
        f"Iterations of digits on all {cores()} cores for {arguments.minutes:g} "
        f"minutes, none of which waits for another core: how far the median of "
        f"{STRETCH * TICK_S:g} s is from that of the {FOLLOWING * TICK_S:g} s after.",
    ]
    print(tables.save("steadiness", parts, {"tick_s": TICK_S, "medians_s": of_cores}))


def measured(seconds: float) -> list[float]:
    """Return the median iteration of each tick, seconds."""
    torch.set_num_threads(1)
    trial = Trial(load("digits"), LocalTransport())
    trial.run(1, 20)
    ticks = []
    until_s = time.perf_counter() + seconds
    while (begin_s := time.perf_counter()) < until_s:
        own_s = []
        while time.perf_counter() < begin_s + TICK_S:
            own_s.append(float(trial.run(1, 0).total_s[0]))
        ticks.append(round(float(np.median(own_s)), 7))
    return ticks


def errors(ticks: list[float], windows: list[int]) -> FloatArray:
    """Return, of each question, what ``windows`` say over what follows, less 1.

    Args:
        ticks: the median iteration of each tick, more than a question takes.
        windows: ticks of a stretch.
    """
    medians_s = np.array(ticks)
    starts = range(0, len(ticks) - STRETCH - FOLLOWING, STEP)
    said_s = [np.median(medians_s[start + np.array(windows)]) for start in starts]
    came_s = [
        np.median(medians_s[start + STRETCH : start + STRETCH + FOLLOWING])
        for start in starts
    ]
    off: FloatArray = np.array(said_s) / np.array(came_s) - 1
    return off


def shares(off: FloatArray) -> list[float]:
    """Return median, 90th percentile and worst of the errors, whatever their sign."""
    found: list[float] = np.percentile(np.abs(off), [50, 90, 100]).tolist()
    return found


if __name__ == "__main__":
    main()
