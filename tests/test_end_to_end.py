"""From a profile to a trained model, through the commands, on one host and on many."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from comm_plan.benchmarks.hosts import EmulatedHosts, supported
from comm_plan.plans import Network, Plan, Profile, RunRecord
from comm_plan.plans.parameters import model_fingerprint
from comm_plan.profiler import profile_from_model
from comm_plan.tests.runtime.trainings import plan_for
from comm_plan.tests.support import digits_by_ddp, forked
from comm_plan.tests.support.digits_by_ddp import in_double
from comm_plan.tests.support.documents import fit, network
from comm_plan.tests.support.engines import ENGINES
from comm_plan.tests.support.harness import real_ranks
from comm_plan.workloads import load

pytestmark = pytest.mark.slow

RANKS = 4
STEPS = 50
SEED = 5
NETWORK = network(RANKS, allreduce=fit((0, 2e-4, 1e-9)))
COMMAND = [sys.executable, "-m", "comm_plan.cli"]


def run(folder, *arguments):
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return " ".join(done.stderr.split())


def train(folder, ranks, *arguments):
    """Run ``comm-plan train`` over gloo as a launcher would, but sooner."""
    done = forked.run("comm_plan.cli", ranks, "train", *arguments, cwd=folder)
    return " ".join(done.stderr.split())


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A folder with a measured profile of digits and an optimal plan for it."""
    folder = tmp_path_factory.mktemp("digits")
    NETWORK.save(folder / "network.json")
    profiling = ("profile", "digits", "--compressors", "none", "--iterations", 20)
    forked.command(*profiling, cwd=folder)
    run(folder, "solve", "profile.json", "network.json", "--solver", "optimal")
    return folder


@pytest.fixture(scope="module")
def ddp_parameters():
    ranks = real_ranks("gloo").run(RANKS, digits_by_ddp.train, STEPS, SEED)
    for rank in ranks:
        assert all(map(torch.equal, rank.values(), ranks[0].values()))
    return ranks[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_optimal_plan_trains_the_parameters_of_ddp(planned, ddp_parameters, engine):
    """The plan of digits, for digits in float64: see `digits_by_ddp`."""
    initial = in_double().model
    plan = Plan.load(planned / "plan.json")
    fingerprint = model_fingerprint(initial)
    same = plan.model.model_copy(update={"fingerprint": fingerprint})
    plan.model_copy(update={"model": same}).save(planned / "double.json")
    words = (f"{digits_by_ddp.__file__}:in_double", "--plan", "double.json",
             "--backend", engine, "--steps", STEPS, "--seed", SEED,
             "-o", f"{engine}.json", "--checkpoint", engine)  # fmt: skip
    if engine == "gloo":
        train(planned, RANKS, *words)
    else:
        run(planned, "train", *words, "--local-ranks", RANKS)
    last = planned / engine / f"step-{STEPS:08d}" / "rank-00000.pt"
    ours = torch.load(last, weights_only=True)["model"]
    assert set(ours) == set(ddp_parameters)
    for name, start in initial.named_parameters():
        theirs = ddp_parameters[name]
        torch.testing.assert_close(ours[name], theirs, rtol=1e-10, atol=1e-12)
        assert (theirs - start).abs().max() > 1e-2, "nothing was trained"
    record = RunRecord.load(planned / f"{engine}.json")
    assert (record.backend, record.world_size) == (engine, RANKS)
    assert record.steps == STEPS


def test_digits_reach_97_percent_under_an_optimal_plan(planned):
    train(planned, RANKS, "digits", "--plan", "plan.json")
    record = RunRecord.load(planned / "run.json")
    assert record.solver == "optimal"
    assert record.evaluations[-1].metric == "accuracy"
    assert record.evaluations[-1].value >= 0.97
    plan = Plan.load(planned / "plan.json")
    assert record.predicted_iteration_s == plan.predicted.iteration_s
    assert record.predicted_timing == plan.predicted.timing


def test_digits_reach_97_percent_by_local_steps(planned):
    """By the same commands; a third of the bytes, at a time as predicted of rounds."""
    run(planned, "solve", "profile.json", "network.json", "--local-steps", 3,
        "-o", "local.json")  # fmt: skip
    said = train(planned, RANKS, "digits", "--plan", "local.json", "-o", "rounds.json")
    assert "3, then the mean of the ranks" in said
    record = RunRecord.load(planned / "rounds.json")
    assert record.evaluations[-1].value >= 0.97
    assert 2 < record.traffic.compression_ratio <= 3  # epochs end rounds too
    plan = Plan.load(planned / "local.json")
    assert record.local_steps == plan.local_steps
    assert record.predicted_iteration_s == plan.predicted.iteration_s


NORMED = """
import torch
from torch import nn

def make():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    data = [(torch.randn(12, 6), torch.randint(3, (12,))) for _ in range(4)]
    return model, data, nn.CrossEntropyLoss()
"""


def test_batch_norm_is_profiled_planned_and_trained_under_vgc(tmp_path):
    (tmp_path / "own.py").write_text(NORMED)
    network(2, allreduce=fit((0, 1e-4, 1e-8)), allgather=fit((0, 1e-4, 1e-8))).save(
        tmp_path / "network.json"
    )
    run(tmp_path, "profile", "own.py:make", "--compressors", "vgc",
        "--iterations", 20)  # fmt: skip
    said = run(tmp_path, "solve", "profile.json", "network.json", "--compressor", "vgc")
    assert "4 micro-batches" in said
    planned = "own.py:make", "--plan", "plan.json", "--steps", 3
    said = train(tmp_path, 2, *planned)
    assert "second moments from 4 micro-batches: layer 1 (batch norm" in said
    train(tmp_path, 2, *planned, "--second-moments", "micro-batches:4",
          "-o", "again.json")  # fmt: skip
    chosen, asked = (RunRecord.load(tmp_path / f"{n}.json") for n in ("run", "again"))
    assert chosen.parameters_sha256 == asked.parameters_sha256
    assert chosen.steps == 3


UNSUPPORTED = supported()
hosts = pytest.mark.hosts
needs_hosts = pytest.mark.skipif(UNSUPPORTED is not None, reason=str(UNSUPPORTED))


def on_hosts(hosts, *arguments, **environment):
    return hosts.run(
        [*COMMAND, *map(str, arguments)],
        env={"OMP_NUM_THREADS": "1", **environment},
        timeout_s=200,
    )


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """A folder with the profile of a small model, its times chosen."""
    folder = tmp_path_factory.mktemp("hosts")
    model = torch.nn.Sequential(
        *(torch.nn.Linear(150, 150) for _ in range(6)), torch.nn.Linear(150, 10)
    )
    profile = profile_from_model(
        model, torch.zeros(2, 150), name="small", batch_size=2,
        forward_s=0.002, backward_s=0.004, update_s=0.001,
    )  # fmt: skip
    profile.save(folder / "profile.json")
    return folder


@hosts
@needs_hosts
def test_a_cluster_is_measured_planned_and_trained(replayed):
    network, plan, record = (replayed / f"{n}.json" for n in ("network", "plan", "run"))
    with EmulatedHosts(RANKS, "1gbit") as cluster:
        sweep = on_hosts(
            cluster, "benchmark-network", "-o", network,
            "--collectives", "allreduce", "--max-bytes", 2**20, "--budget", 5,
        )  # fmt: skip
        assert [host.returncode for host in sweep] == [0] * RANKS, sweep
        run(replayed, "solve", "profile.json", network, "-o", plan)
        sent = [tx for _, tx in cluster.interface_bytes()]
        steps = 12
        training = on_hosts(
            cluster, "train", f"replay:{replayed / 'profile.json'}",
            "--plan", plan, "-o", record, "--steps", steps,
        )  # fmt: skip
        assert [host.returncode for host in training] == [0] * RANKS, training
        sent = [
            tx - before
            for (_, tx), before in zip(cluster.interface_bytes(), sent, strict=True)
        ]
    measured, planned = Network.load(network), Plan.load(plan)
    assert (measured.world_size, measured.backend) == (RANKS, "gloo")
    assert measured.collectives["allreduce"].fit is not None
    assert (planned.world_size, planned.solver) == (RANKS, "optimal")
    found = RunRecord.load(record)
    assert (found.steps, found.world_size, found.backend) == (steps, RANKS, "gloo")
    assert len(found.hosts) == RANKS
    assert found.predicted_iteration_s == planned.predicted.iteration_s
    assert found.iteration.median_s > 0
    parameters = found.traffic.dense_nbytes
    assert parameters == 4 * sum(
        t.numel for t in Profile.load(replayed / "profile.json").tensors
    )
    ring = 2 * (RANKS - 1) / RANKS * parameters * steps
    assert all(nbytes > ring for nbytes in sent), "the hosts did not all-reduce"


COLLECTIVE_TIMEOUT_S = 300
"""After so long a collective fails by itself; a busy machine notices a death late, but
far sooner than that."""

VICTIM = """
import os, signal, time
import torch
from torch import nn

def make():
    def data(rank, world_size, epoch, seed):
        for step in range(100_000):
            if (step, rank) == (20, 2):
                with open(os.environ["TIME_OF_DEATH"], "w") as stream:
                    stream.write(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            yield torch.ones(3, 150), torch.zeros(3, dtype=torch.long)
    return nn.Linear(150, 10), data, nn.CrossEntropyLoss()
"""


@hosts
@needs_hosts
def test_a_rank_killed_on_one_host_ends_the_others_which_name_it(tmp_path):
    (tmp_path / "own.py").write_text(VICTIM)
    workload = f"{tmp_path / 'own.py'}:make"
    model = load(workload).model
    plan_for(model, RANKS, per_bucket=1).save(tmp_path / "plan.json")
    with EmulatedHosts(RANKS, "1gbit") as cluster:
        results = on_hosts(
            cluster, "train", workload, "--plan", tmp_path / "plan.json",
            "-o", tmp_path / "run.json",
            TIME_OF_DEATH=str(tmp_path / "time"),
        )  # fmt: skip
    lived_on_s = time.time() - float((tmp_path / "time").read_text())
    assert lived_on_s < COLLECTIVE_TIMEOUT_S / 3, "they waited for a collective"
    assert results[2].returncode == -signal.SIGKILL
    for rank in (0, 1, 3):
        assert results[rank].returncode == 1
        lines = [li for li in results[rank].stderr.splitlines() if "error:" in li]
        assert len(lines) == 1, results[rank].stderr
        assert f"error: rank {rank}: rank 2 died" in lines[0]
    assert not (tmp_path / "run.json").exists()
