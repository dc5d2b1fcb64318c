"""The scripts in ``examples/`` run as their docstrings say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from comm_plan.planner import Settings, make_problem, solve
from comm_plan.plans import CollectiveCost, Network, Plan, Profile, RunRecord
from comm_plan.tests.support import forked

EXAMPLES = Path(__file__).parents[2] / "examples"
RANKS = "comm_plan.tests.examples.example_ranks"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)

SOLVERS = ("optimal", "lags", "auto")
FORCED = ("terngrad", "topk", "vgc")
PROFILES = {
    "gpt": ["profile"],
    "language_model": ["profile"],
    "images": ["profile"],
    "gan": ["generator", "critic"],
}
"""What each example that is a loop of its own writes when it profiles."""


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
    forked.command(
        "profile", workload, "--iterations", 20, "--compressors", "none",
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
    script = EXAMPLES / "own_loop.py"
    printed = run(*TORCHRUN, script, documents / "plan.json", cwd=documents)
    assert float(re.search(r"loss ([\d.]+)", printed)[1]) < 0.8  # ln 3 = 1.1: guessing


def slow_network():
    """Return two ranks behind 100 Mbit/s."""
    cost = CollectiveCost.affine(1e-3, 8e-8)
    costs = {"allreduce": cost, "allgather": cost}
    return Network(backend="gloo", world_size=2, collectives=costs)


def write_plans(profiles, methods, folder):
    """Write a plan by each method for each profile."""
    for number, profile in enumerate(profiles):
        for method in methods:
            solver, compressor = method, None
            if method in FORCED:
                solver, compressor = "optimal", method
            options = {"density": 0.1} if compressor == "topk" else {}
            settings = Settings(compressor=compressor, options=options, max_ratio=10)
            problem = make_problem(profile, slow_network(), settings)
            suffix = f"-{number}" if len(profiles) > 1 else ""
            solve(problem, solver).save(folder / f"{method}{suffix}.json")


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """Return a function from an example to the profiles that it writes, made once."""

    @cache
    def profiles(name):
        folder = tmp_path_factory.mktemp(name)
        forked.script(EXAMPLES / f"{name}.py", "profile", cwd=folder)
        written = PROFILES.get(name, ["profile"])
        return [Profile.load(folder / f"{each}.json") for each in written]

    return profiles


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILES)
def test_examples_train_by_every_method_from_their_own_profile(
    name, profiled, tmp_path
):
    """Dense bit for bit as DDP; compressed so that ranks agree, and learn."""
    methods = SOLVERS + FORCED
    write_plans(profiled(name), methods, tmp_path)
    forked.run(RANKS, 2, name, tmp_path)
    report = json.loads((tmp_path / "report").read_text())
    assert set(report) == set(methods)
    assert report["optimal"]["as_ddp"]
    for method, seen in report.items():
        losses = seen["losses"]
        assert seen["agree"], method
        assert sum(losses[-5:]) < 0.9 * sum(losses[:5]), method


@pytest.mark.slow
def test_what_a_plan_took_is_recorded_beside_ddp(profiled, tmp_path):
    script = EXAMPLES / "gpt.py"
    write_plans(profiled("gpt"), ["optimal"], tmp_path)
    for how in ("ddp", "optimal.json"):
        forked.torchrun(script, 2, how, cwd=tmp_path)
    ddp, planned = (
        RunRecord.load(tmp_path / f"run-{name}.json") for name in ("ddp", "plan")
    )
    assert ddp.model_fingerprint == planned.model_fingerprint
    assert ddp.steps == planned.steps == 100
    assert (ddp.plan_sha256, ddp.traffic, ddp.predicted_iteration_s) == (None,) * 3
    assert planned.plan_sha256 == Plan.load(tmp_path / "optimal.json").sha256
    assert planned.predicted_iteration_s is not None
    assert planned.traffic is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [("with_accelerate", "accuracy"), ("with_lightning", "accuracy"),
     ("with_transformers", "mean loss")],
)  # fmt: skip
def test_examples_in_frameworks_learn(name, said, profiled, tmp_path):
    profiles = profiled("images" if name == "with_accelerate" else name)
    write_plans(profiles, ["topk"], tmp_path)
    done = forked.torchrun(
        EXAMPLES / f"{name}.py",
        2,
        tmp_path / "topk.json",
        imports=[name.replace("with_", "comm_plan.integrations.")],
        cwd=tmp_path,
    )
    figure = float(re.search(rf"{said} ([\d.]+)", done.stdout)[1])
    assert figure > 60 if said == "accuracy" else figure < 5  # ln 256 = 5.5: guessing
