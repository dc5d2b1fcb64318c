"""The sweep measures what it says, agrees on all ranks, and catches wrong results."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.commbench import sweep as sweep_module
from comm_plan.commbench.sweep import (
    FEWEST,
    FEWEST_LONG,
    MOST,
    SYNC,
    WINDOWS,
    geometric_sizes,
    measure,
)
from comm_plan.errors import CollectiveError, InputError
from comm_plan.plans import Network
from comm_plan.tests.support import forked
from comm_plan.tests.support.harness import ThreadTransport, run_ranks
from comm_plan.transports.local import LocalTransport

SIZES = (4, 100, 4096)


def sweep(transport, collectives=tuple(COLLECTIVES), **options):
    return measure(transport, collectives, SIZES, budget_s=0.0, **options)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_all_ranks_get_the_same_fitted_network(world_size):
    networks = run_ranks(world_size, sweep)
    assert all(network == networks[0] for network in networks)
    network = networks[0]
    assert (network.world_size, network.backend) == (world_size, "thread")
    assert set(network.collectives) == set(COLLECTIVES)
    for cost in network.collectives.values():
        assert cost.sync == SYNC
        assert cost.fit is not None
        for sample in cost.samples:
            assert 0 < sample.min_s <= sample.median_s <= sample.p95_s
            assert sample.iterations == WINDOWS * FEWEST[0]  # all of them are short


def test_the_document_survives_its_file(tmp_path):
    network, _ = run_ranks(2, sweep)
    network.save(tmp_path / "network.json")
    assert Network.load(tmp_path / "network.json") == network


def test_sizes_are_rounded_up_to_whole_elements_of_every_rank():
    network = run_ranks(3, sweep)[0]
    sizes = {
        name: [sample.nbytes for sample in cost.samples]
        for name, cost in network.collectives.items()
    }
    assert sizes["allreduce"] == [4, 100, 4096]
    assert sizes["allgather"] == sizes["reduce_scatter"] == [12, 108, 4104]
    assert sizes["gtopk"] == sizes["spardl"] == [8, 104, 4096]


def test_gtopk_is_measured_as_far_as_compressed_messages_go():
    def run(transport):
        sizes = (COLLECTIVES["gtopk"].operation.largest_nbytes, 2**30)
        return measure(transport, ("gtopk",), sizes, budget_s=0.0)

    network = run_ranks(2, run)[0]
    (sample,) = network.collectives["gtopk"].samples
    assert sample.nbytes == 4 * 2**20


@pytest.mark.parametrize("sizes", [(2**30,), ()])
def test_sizes_beyond_what_is_sent_are_refused(sizes):
    with pytest.raises(InputError, match="gtopk is measured up to 4194304 bytes"):
        run_ranks(2, lambda transport: measure(transport, ("gtopk",), sizes))


def test_progress_counts_to_the_end():
    seen = []

    def watch(transport):
        listener = seen.append if transport.rank == 0 else lambda call: None
        sweep(transport, ("allreduce",), progress=lambda *call: listener(call))

    run_ranks(2, watch)
    total = WINDOWS * len(SIZES)
    assert [done for done, _, _ in seen] == list(range(total + 1))
    assert {total for _, total, _ in seen} == {total}
    assert seen[0][2] == "allreduce of 4096 bytes"


def test_every_size_is_measured_early_and_late():
    """Calls of one size lie apart, for a network is not equally fast all the time."""
    seen = []

    def watch(transport):
        listener = seen.append if transport.rank == 0 else lambda call: None
        sweep(transport, ("allreduce",), progress=lambda *call: listener(call[2]))

    run_ranks(2, watch)
    *measured, _ = seen
    assert measured == measured[: len(SIZES)] * WINDOWS


def test_what_takes_long_is_measured_at_once(monkeypatch):
    monkeypatch.setattr(sweep_module, "LONG_S", 0.0)
    network = run_ranks(2, sweep, ("allreduce",))[0]
    iterations = {each.iterations for each in network.collectives["allreduce"].samples}
    assert iterations == {FEWEST_LONG}


def test_a_slow_moment_is_outvoted(monkeypatch):
    """One window of four is ten times as slow: the median is that of the others."""
    windows = []

    def moment(transport, point, share_s, before):
        windows.append(point)
        return np.full(FEWEST[0], 1e-2 if len(windows) <= len(SIZES) else 1e-3)

    monkeypatch.setattr(sweep_module, "_measure_window", moment)
    monkeypatch.setattr(sweep_module, "summing", lambda *_: {})
    transport = LocalTransport()
    transport.world_size = 2
    network = measure(transport, ("allreduce",), SIZES, budget_s=0.0)
    medians = {each.median_s for each in network.collectives["allreduce"].samples}
    assert medians == {1e-3}


def test_long_messages_get_fewer_iterations():
    def poor(transport):
        return measure(transport, ("broadcast",), (65_536, 65_540), budget_s=0.0)

    network = run_ranks(2, poor)[0]
    short, long = network.collectives["broadcast"].samples
    expected = tuple(WINDOWS * fewest for fewest in FEWEST)
    assert (short.iterations, long.iterations) == expected


def test_a_larger_budget_buys_iterations_up_to_the_most():
    def rich(transport):
        return measure(transport, ("broadcast",), (4,), budget_s=1000.0)

    network = run_ranks(2, rich)[0]
    (sample,) = network.collectives["broadcast"].samples
    assert sample.iterations == WINDOWS * MOST


class Faulty(ThreadTransport):
    """Changes the last element of whatever arrives on rank 1."""

    def all_reduce(self, tensor, operation="sum"):
        """Reduce, then spoil."""
        super().all_reduce(tensor, operation)
        self._spoil(tensor)

    def all_gather(self, tensor):
        """Gather, then spoil."""
        return self._spoil(super().all_gather(tensor))

    def reduce_scatter(self, tensor):
        """Scatter, then spoil."""
        return self._spoil(super().reduce_scatter(tensor))

    def broadcast(self, tensor, root=0):
        """Broadcast, then spoil."""
        super().broadcast(tensor, root)
        self._spoil(tensor)

    def receive(self, tensor, source):
        """Receive, then spoil."""
        super().receive(tensor, source)
        self._spoil(tensor)

    def _spoil(self, tensor):
        if self.rank == 1:
            tensor.view(-1)[-1] += 1
        return tensor


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_wrong_result_stops_every_rank_and_is_named(collective):
    messages = []

    def run(transport):
        faulty = Faulty(transport._group, transport.rank)
        with pytest.raises(CollectiveError) as caught:
            measure(faulty, (collective,), (4096,), budget_s=0.0)
        messages.append(str(caught.value))

    run_ranks(2, run)
    assert len(messages) == 2
    for message in messages:
        assert f"{collective} of 4096 bytes over thread" in message
        assert "wrong result on rank 1" in message


def test_one_rank_is_told_to_start_more():
    with pytest.raises(InputError, match="start at least 2"):
        measure(LocalTransport())


def test_an_unknown_collective_is_named():
    with pytest.raises(InputError, match="'alltoall' is unknown: use one of allreduce"):
        run_ranks(2, sweep, ("alltoall",))


def test_no_collective_leaves_its_numbers_growing():
    def repeat(transport):
        operation = COLLECTIVES["allreduce"].operation(transport, 64)
        assert operation.is_right()
        for _ in range(200):
            operation.run()
        return operation.buffer

    assert all(torch.isfinite(buffer).all() for buffer in run_ranks(2, repeat))


def test_geometric_sizes_reach_the_largest():
    assert geometric_sizes(4, 64, 4) == (4, 16, 64)
    assert geometric_sizes(4, 63, 4) == (4, 16)
    assert geometric_sizes()[-1] == 64 * 2**20


@pytest.mark.parametrize("bad", [(0, 4, 2), (8, 4, 2), (4, 8, 1)])
def test_sizes_that_leave_nothing_are_refused(bad):
    with pytest.raises(InputError, match="give 1 <= smallest"):
        geometric_sizes(*bad)


CHECK = "comm_plan.benchmarks.fit_check"
SHORT = ("--smallest", "512", "--largest", "1024", "--from", "512", "--budget", "0.1")


@pytest.mark.slow
def test_gloo_ranks_measure_fit_and_measure_afresh():
    output = forked.run(CHECK, 3, *SHORT).stdout
    assert all(name in output for name in COLLECTIVES)
    assert "(gloo, 3 ranks)" in output


def mpirun():
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.skipif(mpirun() is None, reason="mpirun is not installed")
def test_mpi_ranks_measure_fit_and_measure_afresh():
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    launcher = (mpirun(), "--allow-run-as-root", "--oversubscribe", "-n", "2")
    done = subprocess.run(
        [*launcher, sys.executable, "-m", CHECK, *SHORT, "--backend", "mpi"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COLLECTIVES)
    assert "(mpi, 2 ranks)" in done.stdout
