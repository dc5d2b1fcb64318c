"""Plans in other people's training loops give what their DDP gives."""

from itertools import chain
from pathlib import Path

import pytest
import torch

from comm_plan.plans import Dense, TopK
from comm_plan.tests.integrations.programs import RANKS, WithLoss
from comm_plan.tests.runtime.trainings import plan_for
from comm_plan.tests.support import forked

PROGRAM = Path(__file__).parent / "programs.py"
FRAMEWORKS = ("accelerate", "transformers", "lightning")
STEPS = 3

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=FRAMEWORKS)
def trained(request, tmp_path_factory):
    """Return what each rank wrote, by training."""
    folder = tmp_path_factory.mktemp(request.param)
    model = WithLoss()
    plan_for(model, RANKS, Dense()).save(folder / "dense.json")
    sparse = plan_for(model, RANKS, TopK(density=0.2), "allgather")
    sparse.save(folder / "sparse.json")
    jobs = {
        "by DDP": ("ddp", "ddp"),
        "dense": ("dense.json", "dense"),
        "sparse": ("sparse.json", "sparse"),
        "resumed": ("sparse.json", "sparse"),  # finds the checkpoint
    }
    words = (request.param, str(STEPS), *chain(*jobs.values()))
    forked.script(PROGRAM, *words, cwd=folder)
    return {
        name: [
            torch.load(folder / f"training-{number}-rank-{rank}.pt")
            for rank in range(RANKS)
        ]
        for number, name in enumerate(jobs)
    }


def parameters(written):
    return {k: v for k, v in written["values"].items() if "running" not in k}


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


def test_a_dense_plan_gives_what_ddp_gives(trained):
    ours, theirs = trained["dense"], trained["by DDP"]
    assert_equal(ours[0]["values"], theirs[0]["values"])  # running means too
    for rank in range(RANKS):
        assert_equal(parameters(ours[rank]), parameters(theirs[0]))


@pytest.mark.parametrize("name", ["dense", "sparse", "resumed"])
def test_running_statistics_are_those_of_rank_0_on_every_rank(trained, name):
    """They are, however the framework calls the model."""
    first, *others = (rank["values"] for rank in trained[name])
    for other in others:
        assert_equal(other, first)


def test_a_checkpoint_keeps_every_ranks_residual(trained):
    """Ranks agree on the parameters, and go on from what they had not sent."""
    first, resumed = trained["sparse"], trained["resumed"]
    assert_equal(parameters(first[0]), parameters(first[1]))
    left = [rank["remembered"][0]["net.0.weight"]["residual"] for rank in first]
    assert all(residual.count_nonzero() > 0 for residual in left)
    assert not torch.equal(*left)
    assert_equal(parameters(resumed[0]), parameters(resumed[1]))
    for rank, residual in zip(resumed, left, strict=True):
        assert torch.equal(rank["loaded"][0]["net.0.weight"]["residual"], residual)
