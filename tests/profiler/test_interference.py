"""What goes on beside ends on all ranks together, whatever happens."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from comm_plan.errors import CollectiveError
from comm_plan.profiler import compression, compression_costs
from comm_plan.profiler.interference import AllReduce, Codec, repeated
from comm_plan.profiler.waiting import Rendezvous
from comm_plan.tests.support.harness import ThreadTransport, run_ranks
from comm_plan.transports.local import LocalTransport

CPU = torch.device("cpu")


class Counting(ThreadTransport):
    """Counts its all-reduces."""

    def __init__(self, transport):
        super().__init__(transport._group, transport.rank)
        self.calls = []

    def all_reduce(self, tensor, operation="sum"):
        self.calls.append(tensor.numel())
        super().all_reduce(tensor, operation)


def test_every_rank_all_reduces_equally_often():
    def body(transport):
        channel = Counting(transport.duplicate())
        with repeated(AllReduce(channel, 7), CPU) as spans:
            for _ in range(1 + 20 * transport.rank):  # ranks finish at different times
                torch.ones(100).sum()
        transport.barrier()
        assert len(spans) == len(channel.calls)
        return channel.calls

    calls = run_ranks(3, body)
    assert calls[0] == calls[1] == calls[2]
    assert set(calls[0]) == {7}


def test_a_rank_that_fails_inside_does_not_keep_the_others():
    def body(transport):
        try:
            with repeated(AllReduce(transport.duplicate(), 1), CPU):
                if transport.rank == 1:
                    raise ValueError("mine")
        except ValueError:
            return "failed"
        return "finished"

    assert run_ranks(3, body) == ["finished", "failed", "finished"]


def test_a_broken_network_is_reported_after_the_block():
    def body(transport):
        class Broken(ThreadTransport):
            def all_reduce(self, tensor, operation="sum"):
                raise CollectiveError("all-reduce failed: cable cut")

        broken = Broken(transport._group, transport.rank)
        with repeated(AllReduce(broken, 1), CPU):
            pass

    with pytest.raises(CollectiveError, match="cable cut"):
        run_ranks(2, body)


def test_passes_over_memory_end_with_this_rank_alone():
    codec = Codec(CPU, 10)
    assert [codec(False), codec(True)] == [False, True]


def test_passes_over_memory_of_a_gpu_wait_for_that_one(monkeypatch):
    """Not for the current one, which does nothing."""
    waited_for = []

    def current_stream(device=None):
        return SimpleNamespace(synchronize=lambda: waited_for.append(device))

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    codec = Codec(CPU, 3, passes=0)
    gpu = torch.device("cuda", 1)
    codec._source = SimpleNamespace(device=gpu, is_cuda=True)
    codec(False)
    assert waited_for == [gpu]


def test_what_is_timed_is_float32_whatever_the_default_of_the_program(monkeypatch):
    """Else half of the bytes, and conversions, would be taken for what a plan costs."""
    moved = []

    class Watched(LocalTransport):
        def all_reduce(self, tensor, operation="sum"):
            moved.append(tensor.dtype)

    def add(compressor, gradient, second_moment):
        moved.append(gradient.dtype)
        of_compressor(compressor, gradient, second_moment)

    of_compressor = compression._add
    monkeypatch.setattr(compression, "_add", add)
    model = nn.Linear(2, 2)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        AllReduce(Watched(), 3)(False)
        Rendezvous(Watched(), model).meet()
        compression_costs(1024, kinds=["topk"], densities=[0.1])
        codec = Codec(CPU, 3)
    finally:
        torch.set_default_dtype(before)
    assert set(moved) == {codec._source.dtype, codec._target.dtype} == {torch.float32}
