"""Claims about VGC."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.compressors.base import Context, Slot
from comm_plan.compressors.vgc import VgcCompressor, power_of_two, quantize
from comm_plan.compressors.words import unpack
from comm_plan.plans.compression import Vgc

pytestmark = pytest.mark.usefixtures("with_and_without_loops")

normal = st.floats(2.0**-100, 2.0**100, width=32).flatmap(
    lambda magnitude: st.sampled_from([magnitude, -magnitude])
)


def vgc(*numels, **options):
    slots = [Slot(f"t{index}", numel) for index, numel in enumerate(numels)]
    context = Context(world_size=1, rank=0, device=torch.device("cpu"))
    return VgcCompressor(Vgc(**options), "allgather", slots, context)


def applied(compressor):
    """Return what a run of one rank applies, tensor by tensor."""
    compressor.decode([compressor.encode()])
    outs = [torch.empty(slot.numel) for slot in compressor.slots]
    for index, out in enumerate(outs):
        compressor.write(index, out)
    return outs


def test_the_worked_example_of_the_paper():
    gradient = torch.tensor([0.04, 0.31, -6.25, 22.25, -35.75])
    compressor = vgc(5)
    compressor.add(0, gradient, torch.zeros(5))
    (message,) = compressor.encode()
    exponent, words = message[0], message[1:]
    assert exponent - 127 == 5
    position, distance, sign = unpack(words)
    assert position.tolist() == [1, 2, 3, 4]
    assert distance.tolist() == [7, 2, 1, 0]
    assert (sign != 0).tolist() == [False, True, False, True]
    compressor.decode([(message,)])
    out = torch.empty(5)
    compressor.write(0, out)
    assert out.tolist() == [0.0, 0.25, -8.0, 16.0, -32.0]


@given(st.lists(normal, min_size=1, max_size=40))
def test_bits_round_as_real_arithmetic_does(values):
    top, distance = quantize(torch.tensor(values), torch.tensor([len(values)]))
    m = math.floor(math.log2(max(map(abs, values))))
    assert top.tolist() == [m + 127]
    for value, d in zip(values, distance.tolist(), strict=True):
        below = math.floor(math.log2(abs(value)))
        nearer = below + (abs(value) - 2.0**below >= 2.0 ** (below + 1) - abs(value))
        assert d == m - min(nearer, m)


@given(st.integers(1, 254), st.sampled_from([-1.0, 1.0]))
def test_powers_of_two_are_exact(exponent, sign):
    power = power_of_two(
        torch.tensor([exponent], dtype=torch.int32), torch.tensor([sign])
    )
    assert power.item() == sign * float(np.float32(2.0) ** np.float32(exponent - 127))


def test_each_tensor_has_its_own_largest_power():
    compressor = vgc(2, 3, 1)
    for index, gradient in enumerate([[1e6, 2e6], [0.0, 0.0, 0.0], [1e-6]]):
        compressor.add(index, torch.tensor(gradient), torch.zeros(len(gradient)))
    large, none, small = applied(compressor)
    assert large.tolist() == [2.0**20, 2.0**20]
    assert none.tolist() == [0.0, 0.0, 0.0]
    assert small.tolist() == [2.0**-20]


def test_an_ambiguous_element_waits_until_its_mean_outweighs_its_variance():
    compressor = vgc(1, alpha=1.5, zeta=1.0)
    sent = []
    for _ in range(4):  # r = n, v = 2 n: sent once n^2 > 1.5 * 2 n
        compressor.add(0, torch.tensor([1.0]), torch.tensor([2.0]))
        sent.append(applied(compressor)[0].item())
    assert sent == [0.0, 0.0, 0.0, 4.0]


def test_the_variance_of_a_waiting_element_decays():
    compressor = vgc(1, alpha=1.0, zeta=0.5)
    compressor.add(0, torch.tensor([1.0]), torch.tensor([3.0]))
    assert applied(compressor)[0].item() == 0.0
    compressor.add(0, torch.tensor([0.0]), torch.tensor([0.0]))
    assert applied(compressor)[0].item() == 0.0  # 1 against 1.5
    compressor.add(0, torch.tensor([0.0]), torch.tensor([0.0]))
    assert applied(compressor)[0].item() == 1.0  # 1 against 0.75


def test_a_leftover_counts_as_one_sample_and_does_not_trigger_sending():
    compressor = vgc(1, alpha=1.5)
    compressor.add(0, torch.tensor([1.25]), torch.tensor([0.0]))
    assert applied(compressor)[0].item() == 1.0
    assert compressor.state["residual"][0].item() == 0.25
    assert compressor.state["variance"][0].item() == 0.0625
    compressor.add(0, torch.tensor([0.0]), torch.tensor([0.0]))
    assert applied(compressor)[0].item() == 0.0


def test_an_element_too_small_for_three_bits_keeps_residual_and_variance():
    compressor = vgc(2, alpha=1.0)
    compressor.add(0, torch.tensor([1.0, 0.001]), torch.tensor([0.0, 1e-7]))
    assert applied(compressor)[0].tolist() == [1.0, 0.0]
    assert compressor.state["residual"][0].tolist() == pytest.approx([0.0, 0.001])
    assert compressor.state["variance"][0].tolist() == pytest.approx([0.0, 1e-7])


def test_the_reset_as_printed_forgets_rounding_and_what_three_bits_cannot_tell():
    gradient = torch.tensor([1.0, 2.0**-9, 0.7])
    kept, printed = vgc(3), vgc(3, as_printed=True)
    for compressor in (kept, printed):
        compressor.add(0, gradient, torch.zeros(3))
    assert applied(kept)[0].tolist() == applied(printed)[0].tolist() == [1.0, 0.0, 0.5]
    (left,) = kept.state["residual"]
    torch.testing.assert_close(left, torch.tensor([0.0, 2.0**-9, 0.2]))
    assert printed.state["residual"][0].tolist() == [0.0, 0.0, 0.0]
    assert printed.state["variance"][0].tolist() == [0.0, 0.0, 0.0]


def test_what_is_sent_as_printed_can_be_undone():
    compressor = vgc(2, as_printed=True)
    compressor.add(0, torch.tensor([3.0, 0.1]), torch.tensor([0.0, 1.0]))
    compressor.encode()
    compressor.undo()
    assert compressor.state["residual"][0].tolist() == pytest.approx([3.0, 0.1])
    assert compressor.state["variance"][0].tolist() == [0.0, 1.0]


def test_a_higher_alpha_sends_less():
    words = []
    for alpha in (1.0, 1.5, 2.0):
        generator = torch.Generator().manual_seed(0)
        compressor = vgc(500, alpha=alpha)
        total = 0
        for _ in range(20):
            samples = torch.randn(8, 500, generator=generator) / 8
            compressor.add(0, samples.sum(0), samples.square().sum(0))
            total += compressor.encode()[0].numel() - 1
        words.append(total)
    assert words[0] > words[1] > words[2] > 0


@pytest.mark.parametrize(("tensors", "header"), [(1, 1), (4, 1), (5, 2)])
def test_the_header_is_one_byte_a_tensor(tensors, header):
    compressor = vgc(*[3] * tensors)
    for index in range(tensors):
        compressor.add(index, torch.ones(3), torch.zeros(3))
    assert compressor.encode()[0].numel() == header + 3 * tensors
