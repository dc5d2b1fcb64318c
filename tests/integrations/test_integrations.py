"""Plans in other people's training loops give what their DDP gives."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from comm_plan.plans import Dense, TopK
from comm_plan.tests.integrations.programs import WithLoss
from comm_plan.tests.runtime.trainings import plan_for

PROGRAM = Path(__file__).parent / "programs.py"
FRAMEWORKS = ("accelerate", "transformers", "lightning")
STEPS = 3

pytestmark = pytest.mark.slow


def run(framework, how, folder, steps=STEPS):
    """Return what each of two ranks wrote."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         "--nproc-per-node", "2", str(PROGRAM), framework, str(how), str(steps),
         str(folder)],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(2)]


def parameters(written):
    return {k: v for k, v in written["values"].items() if "running" not in k}


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Return the paths of a dense and of a sparse plan."""
    folder = tmp_path_factory.mktemp("plans")
    model = WithLoss()
    plan_for(model, 2, Dense()).save(folder / "dense.json")
    sparse = plan_for(model, 2, TopK(density=0.2), "allgather")
    sparse.save(folder / "topk.json")
    return {"dense": folder / "dense.json", "topk": folder / "topk.json"}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_dense_plan_gives_what_ddp_gives(framework, plans, tmp_path):
    theirs = run(framework, "ddp", tmp_path / "ddp")
    ours = run(framework, plans["dense"], tmp_path / "plan")
    assert_equal(ours[0]["values"], theirs[0]["values"])  # running means too
    for rank in range(2):
        assert_equal(parameters(ours[rank]), parameters(theirs[0]))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_checkpoint_keeps_every_ranks_residual(framework, plans, tmp_path):
    """Ranks agree on the parameters, and go on from what they had not sent."""
    first = run(framework, plans["topk"], tmp_path / "run")
    assert_equal(parameters(first[0]), parameters(first[1]))
    left = [rank["remembered"][0]["net.0.weight"]["residual"] for rank in first]
    assert all(residual.count_nonzero() > 0 for residual in left)
    assert not torch.equal(*left)
    resumed = run(framework, plans["topk"], tmp_path / "run")
    assert_equal(parameters(resumed[0]), parameters(resumed[1]))
    for rank, residual in zip(resumed, left, strict=True):
        assert torch.equal(rank["loaded"][0]["net.0.weight"]["residual"], residual)
