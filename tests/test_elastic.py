"""A run under torchrun goes on without a host that is gone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from comm_plan.plans import Plan, RunRecord
from comm_plan.profiler import profile_from_model
from comm_plan.tests.support.documents import fit, network
from comm_plan.workloads import load

pytestmark = pytest.mark.slow

STEPS = 20
STEP_S = 0.2
WORKLOAD = f"""
import time
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)), data, nn.MSELoss()

def data(rank, world_size, epoch, seed):
    for _ in range(100):
        time.sleep({STEP_S})
        yield torch.randn(4, 8), torch.randn(4, 4)
"""


def agent(folder, endpoint, is_host):
    """Start one host's launcher, in a session of its own; one has to be the host."""
    conf = f"last_call_timeout=5,keep_alive_interval=1,is_host={is_host}"
    launcher = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2",
        "--nproc-per-node", "1", "--max-restarts", "5", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", endpoint, "--rdzv-conf", conf, "--no-python",
    ]  # fmt: skip
    train = [
        sys.executable, "-m", "comm_plan.cli", "train", "mine.py:make",
        "--plan", "plan.json", "--steps", str(STEPS),
        "--checkpoint", "checkpoints", "--checkpoint-every", "1",
        "--elastic", "profile.json", "network.json",
    ]  # fmt: skip
    with (folder / f"{time.monotonic()}.log").open("w") as log:
        return subprocess.Popen(
            [*launcher, *train], cwd=folder, stdout=log, stderr=log,
            start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip


def end(process):
    """Kill a launcher and the ranks that it started, all at once."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    started = [int(pid) for pid in children.read_text().split()]
    for pid in (process.pid, *started):
        os.kill(pid, signal.SIGKILL)
    process.wait()


def newest(folder):
    """Return the step of the newest complete checkpoint, 0 without one."""
    names = [path.name for path in (folder / "checkpoints").glob("step-*")]
    complete = [name for name in names if not name.endswith(".partial")]
    return max((int(name.removeprefix("step-")) for name in complete), default=0)


def logs(folder):
    return "\n".join(path.read_text()[-3000:] for path in folder.glob("*.log"))


@pytest.mark.skipif(sys.platform != "linux", reason="looks for children in /proc")
def test_a_run_goes_on_without_a_host_that_is_gone(
    tmp_path, command, monkeypatch, port
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(WORKLOAD)
    network(2, allreduce=fit((0, 1e-4, 1e-9))).save(tmp_path / "network.json")
    profile_from_model(
        load("mine.py:make").model, torch.zeros(4, 8), name="mine", batch_size=4,
        forward_s=STEP_S, backward_s=1e-4, update_s=1e-4,
    ).save(tmp_path / "profile.json")  # fmt: skip
    assert command("solve", "profile.json", "network.json").returncode == 0
    assert Plan.load(tmp_path / "plan.json").world_size == 2

    endpoint = f"localhost:{port}"
    agents = [agent(tmp_path, endpoint, is_host=True)]
    try:
        agents.append(agent(tmp_path, endpoint, is_host=False))
        deadline_s = time.monotonic() + 120
        while (seen := newest(tmp_path)) < 3 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert seen >= 3, logs(tmp_path)
        end(agents.pop())
        assert agents[0].wait(timeout=150) == 0, logs(tmp_path)
    finally:
        for left in agents:
            if left.poll() is None:
                end(left)
    record = RunRecord.load(tmp_path / "run.json")
    assert record.steps == STEPS
    assert record.world_size == 1
    assert "solved again for 1 rank: the plan is for 2" in logs(tmp_path)
    assert len(record.iterations_s) < STEPS  # it did not begin anew
