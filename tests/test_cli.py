"""Through the real command: what it prints, and how it refuses."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from comm_plan.plans import Network, Plan, Profile, RunRecord, fingerprint

LAYERS = [("b", [4], 0.1), ("a", [2, 4], 0.3)]


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "comm_plan.cli", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False, **options,
    )  # fmt: skip


def profile():
    tensors = [
        {"name": name, "layer": name, "shape": shape, "dtype": "float32",
         "numel": 4 if len(shape) == 1 else 8, "ready_s": ready_s}
        for name, shape, ready_s in LAYERS
    ]  # fmt: skip
    identity = fingerprint((n, tuple(s), "float32") for n, s, _ in LAYERS)
    return {
        "schema": "comm-plan/profile",
        "version": 1,
        "model": {"name": "two", "fingerprint": identity, "parameters": 12},
        "device": {"type": "cpu", "name": "x"},
        "batch_size": 32,
        "forward_s": 0.001,
        "backward_s": 0.003,
        "update_s": 0.001,
        "tensors": [{**t, "ready_s": t["ready_s"] / 100} for t in tensors],
    }


def network(world_size=2):
    line = {"from_nbytes": 0, "alpha_s": 1e-3, "beta_s_per_byte": 1e-8}
    return {
        "schema": "comm-plan/network",
        "version": 1,
        "backend": "gloo",
        "world_size": world_size,
        "collectives": {"allreduce": {"fit": {"segments": [line]}}},
    }


def plan(**changes):
    return {
        "schema": "comm-plan/plan",
        "version": 1,
        "solver": "hand",
        "model": {"name": "two", "fingerprint": profile()["model"]["fingerprint"]},
        "world_size": 1,
        "backend": "gloo",
        "buckets": [{"tensors": ["b"]}, {"tensors": ["a"]}],
        **changes,
    }


@pytest.fixture
def folder(tmp_path):
    for name, document in (
        ("profile", profile()),
        ("network", network()),
        ("plan", plan()),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    return tmp_path


def one_error(run, code):
    """Return the one line that the run printed, which must have ended with `code`."""
    assert run.returncode == code, run.stderr
    assert "Traceback" not in run.stderr
    lines = [line for line in run.stderr.splitlines() if "error:" in line]
    assert len(lines) == 1, run.stderr
    return lines[0]


def test_help_is_quick_and_needs_no_torch():
    code = (
        "import sys\nfrom comm_plan import cli\nsys.argv = ['comm-plan', '--help']\n"
        "try:\n    cli.app()\nexcept SystemExit:\n    pass\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_solve_writes_a_plan_and_prints_every_solver(folder):
    run = command("solve", folder / "profile.json", folder / "network.json",
                  "-o", folder / "out.json", "--json")  # fmt: skip
    assert run.returncode == 0, run.stderr
    written = Plan.load(folder / "out.json")
    assert Plan.from_json(run.stdout) == written
    assert [t for b in written.buckets for t in b.tensors] == ["b", "a"]
    assert written.inputs.profile_sha256 == Profile.load(folder / "profile.json").sha256
    for solver in ("optimal", "mg-wfbp", "threshold", "wfbp", "single"):
        assert solver in run.stderr


def test_solve_marks_what_it_extrapolates(folder):
    run = command("solve", folder / "profile.json", folder / "network.json",
                  "-o", folder / "out.json", "--world-size", 16)  # fmt: skip
    assert "extrapolated from 2" in " ".join(run.stderr.split())
    assert Plan.load(folder / "out.json").predicted.extrapolated_from == 2


BAD_PROFILES = {
    "{": "not JSON",
    json.dumps({**profile(), "version": 7}): "version 7",
    json.dumps({**profile(), "colour": 1}): "colour",
    json.dumps({**profile(), "forward_s": float("nan")}): "NaN",
    json.dumps({**profile(), "forward_s": -0.5}): "-0.5",
    json.dumps({**profile(), "tensors": profile()["tensors"][::-1]}): "ready order",
    json.dumps({**profile(), "tensors": profile()["tensors"][:1] * 2}): "b is listed",
}


@pytest.mark.parametrize("text", BAD_PROFILES, ids=list(BAD_PROFILES.values()))
def test_a_bad_profile_is_one_line_and_writes_nothing(folder, text):
    (folder / "profile.json").write_text(text)
    line = one_error(
        command("solve", folder / "profile.json", folder / "network.json",
                "-o", folder / "out.json"), 2,
    )  # fmt: skip
    assert "profile.json" in line
    assert BAD_PROFILES[text] in line
    assert not (folder / "out.json").exists()


def test_a_result_that_cannot_be_written_is_told_before_the_work(folder):
    line = one_error(
        command("solve", folder / "profile.json", folder / "network.json",
                "-o", folder / "absent" / "out.json"), 2,
    )  # fmt: skip
    assert "absent" in line


def test_unknown_names_are_refused_with_what_is_known(folder):
    inputs = (folder / "profile.json", folder / "network.json")
    assert "optimal" in one_error(command("solve", *inputs, "--solver", "best"), 2)
    assert "terngrad" in one_error(command("solve", *inputs, "--compressor", "x"), 2)
    assert "digits" in one_error(command("profile", "no-such-workload"), 2)
    assert "gloo" in one_error(
        command("profile", "digits", "--backend", "x", cwd=folder), 2
    )


REPLAYED = "replay:profile.json"
BAD_PLANS = {
    "another world size": (plan(world_size=4), "--world-size 1"),
    "another model": (
        plan(model={"name": "two", "fingerprint": "sha256:00"}),
        "other shapes",
    ),
    "a missing tensor": (plan(buckets=[{"tensors": ["b"]}]), "tensor a "),
    "a doubled tensor": (
        plan(buckets=[{"tensors": ["b", "a"]}, {"tensors": ["a"]}]),
        "tensor a is in the plan twice",
    ),
    "a foreign tensor": (
        plan(buckets=[{"tensors": ["b", "a", "c"]}]),
        "tensor c ",
    ),
    "an unknown compressor": (
        plan(buckets=[{"tensors": ["b", "a"], "compressor": {"kind": "zip"}}]),
        "zip",
    ),
    "density 0": (
        plan(
            buckets=[
                {
                    "tensors": ["b", "a"],
                    "compressor": {"kind": "topk", "density": 0},
                    "collective": "allgather",
                }
            ]
        ),
        "density",
    ),
}


@pytest.mark.parametrize("fault", BAD_PLANS)
def test_a_bad_plan_is_refused_before_training(folder, fault):
    document, message = BAD_PLANS[fault]
    (folder / "plan.json").write_text(json.dumps(document))
    run = command("train", REPLAYED, "--plan", "plan.json", cwd=folder)
    assert message in one_error(run, 2)
    assert not (folder / "run.json").exists()


def test_the_loop_from_profile_to_run_record(folder):
    def step(*arguments):
        run = command(*arguments, "--local-ranks", 2, cwd=folder)
        assert run.returncode == 0, run.stderr

    step("profile", REPLAYED, "-o", "again.json", "--compressors", "none")
    step("benchmark-network", "-o", "net.json", "--max-bytes", 4096, "--budget", 1)
    run = command("solve", "again.json", "net.json", cwd=folder)
    assert run.returncode == 0, run.stderr
    step("train", REPLAYED, "--plan", "plan.json", "--steps", 8)
    measured = Profile.load(folder / "again.json")
    given = Profile.load(folder / "profile.json")
    assert measured.model.fingerprint == given.model.fingerprint
    assert [t.name for t in measured.tensors] == [t.name for t in given.tensors]
    assert measured.under_communication.world_size == 2
    assert Network.load(folder / "net.json").world_size == 2
    record = RunRecord.load(folder / "run.json")
    assert record.steps == 8
    assert record.world_size == 2
    assert record.predicted_iteration_s == Plan.load(folder / "plan.json").predicted.iteration_s  # fmt: skip  # noqa: E501
    for name in ("again.json", "net.json", "plan.json", "run.json"):
        shown = command("show", folder / name)
        assert shown.returncode == 0, shown.stderr


@pytest.mark.parametrize("suffix", ["png", "html", "json"])
def test_report_draws_a_file(folder, suffix):
    target = folder / f"timeline.{suffix}"
    run = command("report", folder / "profile.json", folder / "network.json",
                  "-o", target)  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert target.stat().st_size > 100


def test_report_and_simulate_print(folder):
    inputs = (folder / "profile.json", folder / "network.json")
    drawn = command("report", *inputs)
    assert drawn.returncode == 0, drawn.stderr
    assert "optimal" in drawn.stderr
    table = command("simulate", *inputs, "--world-sizes", "2,8")
    assert table.returncode == 0, table.stderr
    assert "8 *" in table.stderr


WORKLOAD = """
import os, signal, time
import torch
from torch import nn

def make():
    model = nn.Linear(4, 2)
    def data(rank, world_size, epoch, seed):
        for step in range(100_000):
            if step == 20 and rank == int(os.environ["VICTIM"]):
                {act}
            yield torch.ones(3, 4), torch.zeros(3, dtype=torch.long)
    return model, data, nn.CrossEntropyLoss()
"""


def run_with_a_victim(tmp_path, act, victim, ranks=4):
    (tmp_path / "own.py").write_text(WORKLOAD.format(act=act))
    document = plan(
        world_size=ranks,
        model={
            "name": "own",
            "fingerprint": fingerprint(
                [("weight", (2, 4), "float32"), ("bias", (2,), "float32")]
            ),
        },
        buckets=[{"tensors": ["bias", "weight"]}],
    )
    (tmp_path / "plan.json").write_text(json.dumps(document))
    start = time.monotonic()
    run = command(
        "train", "own.py:make", "--plan", "plan.json", "--local-ranks", ranks,
        cwd=tmp_path, env={**os.environ, "VICTIM": str(victim)},
    )  # fmt: skip
    return run, time.monotonic() - start


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_ends_the_run_and_is_named_by_the_others(tmp_path, victim):
    kill = f"os.kill(os.getpid(), {int(signal.SIGKILL)})"
    run, seconds = run_with_a_victim(tmp_path, kill, victim)
    assert run.returncode == 1, run.stderr
    assert "Traceback" not in run.stderr
    for rank in {0, 1, 2, 3} - {victim}:
        mine = [li for li in run.stderr.splitlines() if f"error: rank {rank}:" in li]
        assert len(mine) == 1, run.stderr
        assert f"rank {victim} died" in mine[0]
    assert seconds < 60
    assert not (tmp_path / "run.json").exists()


def test_an_exception_on_one_rank_is_told_by_all(tmp_path):
    run, _ = run_with_a_victim(tmp_path, "raise ValueError('bad sample')", 1)
    assert run.returncode == 1, run.stderr
    assert "Traceback" not in run.stderr
    assert "error: rank 1: ValueError: bad sample" in run.stderr
    for rank in (0, 2, 3):
        mine = [li for li in run.stderr.splitlines() if f"error: rank {rank}:" in li]
        assert len(mine) == 1, run.stderr
        assert "rank 1 failed" in mine[0]
        assert "bad sample" in mine[0]


def test_the_examples_in_plans_are_valid():
    examples = Path(__file__).parent.parent / "plans" / "examples"
    names = sorted(path.name for path in examples.glob("*.json"))
    assert names
    for name in names:
        run = command("show", examples / name)
        assert run.returncode == 0, run.stderr
