"""The scripts in ``examples/`` run as their docstrings say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from comm_plan.plans import Plan

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*words, **options):
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_planning_prints_a_comparison_and_never_loads_torch(tmp_path):
    script = EXAMPLES / "plan_without_torch.py"
    code = (
        "import runpy, sys; sys.modules['torch'] = None; "  # any import of it fails
        f"runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    printed = run("-c", code, cwd=tmp_path)
    times = dict(re.findall(r"^([\w-]+) +([\d.]+) ms an iteration", printed, re.M))
    assert float(times["optimal"]) <= float(times["threshold"])
    assert "buckets" in printed.splitlines()[-1]


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Return profile, network and plan of the example's workload."""
    folder = tmp_path_factory.mktemp("documents")
    verb = ["-m", "comm_plan.cli"]
    workload = f"{EXAMPLES / 'workload.py'}:spirals"
    run(
        *verb, "profile", workload, "--iterations", 20, "--compressors", "none",
        "-o", "profile.json", cwd=folder,
    )  # fmt: skip
    run(
        *verb, "benchmark-network", "--local-ranks", 2, "--collectives", "allreduce",
        "--max-bytes", 65536, "--budget", 1, "-o", "network.json", cwd=folder,
    )  # fmt: skip
    run(*verb, "solve", "profile.json", "network.json", "-o", "plan.json", cwd=folder)
    return folder


@pytest.mark.slow
def test_the_workload_is_profiled_and_planned(documents):
    plan = Plan.load(documents / "plan.json")
    assert sum(len(bucket.tensors) for bucket in plan.buckets) == 6
    assert plan.world_size == 2


@pytest.mark.slow
def test_the_loop_learns_on_two_ranks(documents):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    script = EXAMPLES / "own_loop.py"
    printed = run(*launcher, script, documents / "plan.json", cwd=documents)
    assert float(re.search(r"loss ([\d.]+)", printed)[1]) < 0.8  # ln 3 = 1.1: guessing
