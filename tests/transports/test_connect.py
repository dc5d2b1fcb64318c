"""Whoever starts the ranks, they meet; what cannot work is refused with a remedy."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

from comm_plan.errors import InputError, PeerError
from comm_plan.tests.support.harness import mpirun
from comm_plan.tests.transports import connecting_ranks
from comm_plan.transports import connect as module
from comm_plan.transports.connect import connect, current_transport
from comm_plan.transports.distributed import fresh
from comm_plan.transports.launch import run_local
from comm_plan.transports.local import LocalTransport
from comm_plan.transports.ranks import Place

RANKS = 3
with_mpi = [
    pytest.mark.mpi,
    pytest.mark.skipif(mpirun() is None, reason="mpirun is not here"),
]


def command(*arguments):
    return [sys.executable, "-m", connecting_ranks.__name__, *arguments]


@pytest.fixture
def one_of_four(monkeypatch):
    """Be rank 3 of 4 of torchrun."""
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "backend"),
    [
        ("gloo", "gloo"),
        pytest.param("mpi", "gloo", marks=with_mpi),
        pytest.param("mpi", "mpi", marks=with_mpi),
    ],
)
def test_the_ranks_meet_and_leave_without_a_word(launcher, backend, capfd):
    assert run_local(command(backend, "well", "0"), RANKS, launcher) == 0
    captured = capfd.readouterr()
    assert sorted(captured.err.splitlines()) == [
        f"well: {backend} {rank}" for rank in range(RANKS)
    ]
    assert captured.out == ""


@pytest.mark.slow
def test_torchrun_starts_the_ranks_too():
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    module = ["-m", connecting_ranks.__name__, "gloo", "well", "0"]
    done = subprocess.run(
        [*torchrun, "--standalone", *module], capture_output=True, text=True
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("well")]
    assert done.returncode == 0, done.stderr
    assert sorted(lines) == ["well: gloo 0", "well: gloo 1"]


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.skipif(mpirun() is None, reason="mpirun is not here")
def test_a_failure_under_mpi_is_reported_and_ends_all_ranks(capfd):
    assert run_local(command("mpi", "fail", "1"), RANKS, "mpi") != 0
    assert "on the spot: the data" in capfd.readouterr().err


def test_a_process_alone_is_a_run():
    with connect("gloo") as transport:
        assert isinstance(transport, LocalTransport)
        assert transport.device == torch.device("cpu")
        assert current_transport() is transport
    assert current_transport() is not transport


def test_the_device_can_be_chosen():
    with connect("gloo", device="meta") as transport:
        assert transport.device == torch.device("meta")


def test_a_rank_that_joined_no_run_is_told_how(one_of_four):
    with pytest.raises(InputError, match=r"rank 3 of 4 .*init_process_group\(\)"):
        current_transport()


@pytest.mark.parametrize(
    ("kind", "asked", "chosen"),
    [
        ("cpu", None, "cpu"),
        ("cpu", "cpu", "cpu"),
        ("cpu", "cuda", "cuda:2"),
        ("cpu", "cuda:1", "cuda:1"),
        ("cuda", None, "cuda:2"),
        ("cuda", "cuda", "cuda:2"),
    ],
)
def test_a_rank_works_on_its_own_device(kind, asked, chosen, monkeypatch):
    current = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    here = SimpleNamespace(launcher="torchrun", local_rank=2)
    device = torch.device(chosen)
    assert module._device(kind, asked, here) == device
    assert current == [device] * (device.type == "cuda")


@pytest.mark.parametrize(
    ("launcher", "named", "own"),
    [
        ("srun", None, True),
        ("mpirun", "3", True),
        ("mpirun", None, False),
        ("mpiexec", "0,1", False),
        ("torchrun", "3", False),
    ],
)
def test_a_launcher_may_show_each_rank_its_own_device_only(
    launcher, named, own, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    here = SimpleNamespace(launcher=launcher, local_rank=2)
    if own:
        assert module._device("cuda", None, here) == torch.device("cuda", 0)
    else:
        with pytest.raises(InputError, match="local rank 2 needs a CUDA device"):
            module._device("cuda", None, here)


def test_over_gloo_ranks_may_share_a_cuda_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    here = SimpleNamespace(launcher="torchrun", local_rank=3)
    assert module._device("cpu", "cuda", here) == torch.device("cuda", 1)


def test_nccl_moves_nothing_that_is_on_the_cpu():
    with pytest.raises(InputError, match="nccl moves what is on CUDA devices"):
        module._device("cuda", "cpu", SimpleNamespace(local_rank=0))


def test_a_rank_without_a_cuda_device_is_refused(one_of_four, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with (
        pytest.raises(InputError, match=r"local rank 3 needs .* 2 are visible"),
        connect("nccl"),
    ):
        pass


@pytest.fixture
def mpi_unloaded(monkeypatch):
    """Let the MPI transport be imported anew in this test, and forgotten after it."""
    module = "comm_plan.transports.mpi"
    monkeypatch.setitem(sys.modules, module, None)
    del sys.modules[module]


def test_without_mpi4py_the_remedy_is_named(one_of_four, mpi_unloaded, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with (
        pytest.raises(InputError, match=r"pip install 'comm-plan\[mpi\]'"),
        connect("mpi"),
    ):
        pass


def test_an_mpi_without_threads_is_refused(one_of_four, mpi_unloaded, monkeypatch):
    mpi = Mock(THREAD_SERIALIZED=2, Exception=RuntimeError)
    mpi.Query_thread.return_value = 1
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=mpi))
    with (
        pytest.raises(InputError, match="thread level 1, below MPI_THREAD_SERIALIZED"),
        connect("mpi"),
    ):
        pass


def test_ranks_that_do_not_come_are_not_waited_for_for_ever(
    one_of_four, monkeypatch, port
):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    with (
        pytest.raises(PeerError, match=r"rank 0 did not meet all 4 ranks at 127.0.0.1"),
        connect("gloo", timeout_s=1),
    ):
        pass


@pytest.mark.parametrize("late", range(RANKS))
def test_ranks_that_are_started_again_hear_nothing_of_those_before(late, port):
    """Whichever comes last, to the one store that torchrun keeps."""
    within = timedelta(seconds=20)
    kept = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)

    def hears(rank, attempt):
        time.sleep(0.2 * (rank == late))
        store = dist.TCPStore("127.0.0.1", kept.port, timeout=within)
        store = fresh(store, Place(rank, RANKS, rank, "torchrun"), within)
        store.set(f"said/{rank}", attempt)
        return [store.get(f"said/{other}").decode() for other in range(RANKS)]

    with ThreadPoolExecutor(RANKS) as ranks:
        for attempt in ("first", "second"):
            heard = ranks.map(hears, range(RANKS), [attempt] * RANKS)
            assert list(heard) == [[attempt] * RANKS] * RANKS


def test_a_failed_block_leaves_nothing_behind():
    with pytest.raises(ValueError, match="mine"), connect("gloo"):
        raise ValueError("mine")
    with connect("gloo") as transport:
        assert current_transport() is transport


@pytest.mark.slow
def test_torch_that_debugs_on_one_rank_only_is_refused(capfd, monkeypatch):
    """Before it waits for messages that the others never send."""
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "OFF")
    other = (
        'if [ $RANK = 1 ]; then export TORCH_DISTRIBUTED_DEBUG=DETAIL; fi; exec "$@"'
    )
    assert run_local(["sh", "-c", other, "sh", *command("gloo", "well", "0")], RANKS)
    assert capfd.readouterr().err.splitlines() == [
        "MismatchError: $TORCH_DISTRIBUTED_DEBUG is DETAIL on rank 1, OFF on rank 0: "
        "let all ranks have the same"
    ] * RANKS  # fmt: skip
