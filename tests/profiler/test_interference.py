"""The dummy traffic ends on all ranks together, whatever happens."""

import pytest
import torch

from comm_plan.errors import CollectiveError
from comm_plan.profiler.interference import background_all_reduce
from comm_plan.tests.support.harness import ThreadTransport, run_ranks


class Counting(ThreadTransport):
    """Counts the all-reduces of its duplicate."""

    def duplicate(self):
        copy = super().duplicate()
        self.calls = []
        real = copy.all_reduce

        def counted(tensor, operation="sum"):
            self.calls.append(tensor.numel())
            real(tensor, operation)

        copy.all_reduce = counted
        return copy


def counting(transport):
    return Counting(transport._group, transport.rank)


def test_every_rank_all_reduces_equally_often():
    def body(transport):
        transport = counting(transport)
        with background_all_reduce(transport, 7):
            for _ in range(1 + 20 * transport.rank):  # ranks finish at different times
                torch.ones(100).sum()
        transport.barrier()
        return transport.calls

    calls = run_ranks(3, body)
    assert calls[0] == calls[1] == calls[2]
    assert set(calls[0]) == {7}


def test_a_rank_that_fails_inside_does_not_keep_the_others():
    def body(transport):
        try:
            with background_all_reduce(transport, 1):
                if transport.rank == 1:
                    raise ValueError("mine")
        except ValueError:
            return "failed"
        return "finished"

    assert run_ranks(3, body) == ["finished", "failed", "finished"]


def test_a_broken_network_is_reported_after_the_block():
    def body(transport):
        transport = counting(transport)
        transport._group.children.clear()

        class Broken(ThreadTransport):
            def all_reduce(self, tensor, operation="sum"):
                raise CollectiveError("all-reduce failed: cable cut")

        transport.duplicate = lambda: Broken(transport._group, transport.rank)
        with background_all_reduce(transport, 1):
            pass

    with pytest.raises(CollectiveError, match="cable cut"):
        run_ranks(2, body)
