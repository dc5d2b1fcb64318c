"""The runtime on a GPU: gloo with ranks that share it, and NCCL, of one rank.

NCCL refuses two ranks on one GPU, so its collectives have nothing to move here; what is
tested is that streams and events order everything that the engine does around them.
"""

import json
import subprocess
from functools import cache

import pytest
import torch

from comm_plan.benchmarks.commands import comm_plan
from comm_plan.plans import Profile, RunRecord
from comm_plan.tests.runtime.semantics import SAME
from comm_plan.tests.runtime.trainings import METHODS, net, trained
from comm_plan.tests.support import forked
from comm_plan.tests.support.documents import fit, network
from comm_plan.tests.support.harness import MAX_RANKS, real_ranks

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = [pytest.mark.gpu, pytest.mark.slow]

RANKS = 2  # of the commands
STEPS = 8
BY_CHANCE = ("terngrad by allgather", "terngrad by allreduce", "qsgd 2", "qsgd 4")
REFUSED_BY_DDP = {
    "gloo": ("two forwards, batch norm",),  # it broadcasts buffers into the graph
    "nccl": ("two forwards, batch norm", "sparse gradients",
             "sparse gradients from no_sync", "sparse gradients under SparseAdam"),
}  # fmt: skip
NEEDS_OTHERS = ("a group of its own", "unused after no_sync but on rank 1")


def possible(backend, *others):
    """Return the scenarios that DDP itself can do on a GPU."""
    return [s for s in SAME if s not in (*REFUSED_BY_DDP[backend], *others)]


@cache
def outcomes(program, backend, ranks):
    done = forked.run(
        f"comm_plan.tests.runtime.{program}", ranks,
        **{forked.DEVICE: "cuda:0", forked.BACKEND: backend},
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("scenario", possible("gloo"))
def test_two_ranks_over_gloo_give_the_parameters_of_ddp(scenario):
    assert outcomes("ddp_oracle", "gloo", 2)[scenario] in ("same", "close")


@pytest.mark.parametrize("scenario", possible("nccl", *NEEDS_OTHERS))
def test_a_rank_over_nccl_gives_the_parameters_of_ddp(scenario):
    assert outcomes("ddp_oracle", "nccl", 1)[scenario] in ("same", "close")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_on_a_gpu_as_on_the_cpu(method):
    """Those that round at random draw other numbers there, and end nearby.

    Two draws of QSGD with 2 bits end 16 % apart on a CPU, too.
    """
    call = MAX_RANKS, trained, method, STEPS
    (ours, losses), (others, _), *_ = real_ranks("gloo-cuda").run(*call)
    (expected, losses_there), *_ = real_ranks("gloo").run(*call)
    assert all(map(torch.equal, ours.values(), others.values()))
    if method in BY_CHANCE:
        start = dict(net().named_parameters())
        for name, there in expected.items():
            trained_by = (there - start[name]).norm()
            assert (ours[name] - there).norm() < trained_by
        assert losses[-1] == pytest.approx(losses_there[-1], rel=0.25)
    else:
        torch.testing.assert_close(ours, expected)
        assert losses[-1] == pytest.approx(losses_there[-1], rel=1e-5)


@pytest.mark.parametrize("scenario", [*METHODS, "random data", "adam"])
def test_resuming_on_a_gpu_gives_bitwise_the_uninterrupted_parameters(scenario):
    uninterrupted, resumed, *_ = outcomes("resume_ranks", "gloo", 2)[scenario]
    assert resumed == uninterrupted


def run(folder, *arguments):
    done = subprocess.run(
        comm_plan(*arguments),
        cwd=folder, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """A folder with a profile of digits on the GPU, and a slow network."""
    folder = tmp_path_factory.mktemp("digits")
    run(folder, "profile", "digits", "--device", "cuda", "--iterations", 20,
        "--compressors", "fp16,topk,powersgd")  # fmt: skip
    network(RANKS, allreduce=fit((0, 2e-4, 1e-7)), allgather=fit((0, 2e-4, 1e-7))).save(
        folder / "network.json"
    )
    return folder


def test_a_profile_says_that_it_is_of_the_gpu(profiled):
    profile = Profile.load(profiled / "profile.json")
    assert profile.device.type == "cuda"
    assert profile.device.name == torch.cuda.get_device_name()
    ready = [tensor.ready_s for tensor in profile.tensors]
    assert 0 < ready[0] <= ready[-1] <= profile.backward_s < 0.1
    assert profile.compression["topk"]


@pytest.mark.parametrize("solver", ["optimal", "lags", "auto"])
def test_a_plan_of_the_commands_trains_on_the_gpu(profiled, solver):
    plan = f"{solver}.json"
    run(profiled, "solve", "profile.json", "network.json", "--solver", solver,
        "-o", plan)  # fmt: skip
    run(profiled, "train", "digits", "--plan", plan, "--local-ranks", RANKS,
        "--backend", "gloo", "--device", "cuda", "--epochs", 4, "-o", "run.json",
    )  # fmt: skip
    record = RunRecord.load(profiled / "run.json")
    assert (record.backend, record.world_size) == ("gloo", RANKS)
    assert record.evaluations[-1].value > 0.8


def test_the_network_of_ranks_that_share_a_gpu_is_measured(tmp_path):
    run(tmp_path, "benchmark-network", "--local-ranks", RANKS, "--backend", "gloo",
        "--device", "cuda")  # fmt: skip
    assert (tmp_path / "network.json").exists()
