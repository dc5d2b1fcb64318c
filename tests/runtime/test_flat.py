"""Tensors of rank 0 travel only where they differ."""

import pytest
import torch

from comm_plan.runtime.flat import align_tensors
from comm_plan.tests.support.harness import run_ranks

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
    torch.bool,
    torch.int16,
    torch.uint64,
    torch.float8_e4m3fn,
)


def tensors():
    """Return one of each dtype, transposed, a number, one with gaps and nothing."""
    matrices = [torch.ones(2, 3).to(dtype).t() for dtype in DTYPES]
    return [*matrices, torch.tensor(7), torch.eye(3).diagonal(), torch.empty(0)]


@pytest.mark.parametrize("differing", [None, *range(len(DTYPES))])
def test_all_ranks_have_those_of_rank_0(differing):
    def rank(transport):
        sent = []
        broadcast = transport.broadcast

        def counting(tensor, root=0):
            assert tensor.dtype is torch.uint8  # gloo knows no int16, uint64, float8
            sent.append(tensor.nbytes)
            broadcast(tensor, root)

        transport.broadcast = counting
        mine = tensors()
        if differing is not None and transport.rank == 2:
            mine[differing][-1, -1] = 0
        align_tensors(transport, mine)
        return mine, sum(sent)

    for mine, sent_nbytes in run_ranks(3, rank):
        assert all(map(torch.equal, mine, tensors()))
        assert bool(sent_nbytes) == (differing is not None)
