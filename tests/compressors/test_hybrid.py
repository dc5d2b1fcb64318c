"""Claims about the hybrid of VGC and Strom."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.compressors.base import Context, Slot
from comm_plan.compressors.hybrid import HybridCompressor
from comm_plan.plans.compression import Hybrid

pytestmark = pytest.mark.usefixtures("with_and_without_loops")


def hybrid(numel, **options):
    context = Context(world_size=1, rank=0, device=torch.device("cpu"))
    spec = Hybrid(**options)
    return HybridCompressor(spec, "allgather", [Slot("w", numel)], context)


def applied(compressor):
    compressor.decode([compressor.encode()])
    out = torch.empty(compressor.slots[0].numel)
    compressor.write(0, out)
    return out.tolist()


def test_both_conditions_must_hold():
    compressor = hybrid(4, tau=1.0, alpha=1.0)
    residual = torch.tensor([2.0, 2.0, 0.5, -2.0])
    variance = torch.tensor([1.0, 5.0, 0.0, 1.0])
    compressor.add(0, residual, variance)
    assert applied(compressor) == [1.0, 0.0, 0.0, -1.0]
    assert compressor.state["residual"][0].tolist() == [1.0, 2.0, 0.5, -1.0]


@given(
    residual=st.floats(-4, 4, width=32),
    variance=st.floats(0, 8, width=32),
    tau=st.floats(0.125, 2, width=32),
)
def test_the_variance_loses_the_part_that_was_sent(residual, variance, tau):
    compressor = hybrid(1, tau=tau, alpha=1.0)
    compressor.add(0, torch.tensor([residual]), torch.tensor([variance]))
    if applied(compressor) == [0.0]:
        expected = variance
    else:
        expected = max(variance - 2 * abs(residual) * tau + tau**2, 0.0)
    left = compressor.state["variance"][0].item()
    assert left == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_the_variance_of_a_waiting_element_decays():
    compressor = hybrid(1, tau=0.5, alpha=1.0, zeta=0.5)
    gradients = [(1.0, 1.5), (0.0, 0.0)]
    sent = []
    for gradient, moment in gradients:
        compressor.add(0, torch.tensor([gradient]), torch.tensor([moment]))
        sent += applied(compressor)
    assert sent == [0.0, 0.5]
