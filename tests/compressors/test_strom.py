"""Claims about Strom's method."""

import pytest
import torch

from comm_plan.compressors.base import Context, Slot
from comm_plan.compressors.strom import StromCompressor
from comm_plan.plans.compression import Strom

pytestmark = pytest.mark.usefixtures("with_and_without_loops")


def strom(numel, tau, world_size=1):
    context = Context(world_size, rank=0, device=torch.device("cpu"))
    return StromCompressor(Strom(tau=tau), "allgather", [Slot("w", numel)], context)


def test_elements_above_tau_send_tau_with_their_sign():
    compressor = strom(4, tau=1.0)
    compressor.add(0, torch.tensor([1.0, 1.5, -2.5, -0.5]))  # 1.0 is not above
    compressor.decode([compressor.encode()])
    out = torch.empty(4)
    compressor.write(0, out)
    assert out.tolist() == [0.0, 1.0, -1.0, 0.0]
    assert compressor.state["residual"][0].tolist() == [1.0, 0.5, -1.5, -0.5]


def test_a_large_element_is_sent_over_several_steps():
    compressor = strom(1, tau=1.0)
    compressor.add(0, torch.tensor([3.5]))
    lengths = [compressor.encode()[0].numel() for _ in range(5)]
    assert lengths == [1, 1, 1, 0, 0]
    assert compressor.state["residual"][0].item() == 0.5


def test_one_word_is_all_that_an_element_costs():
    compressor = strom(100, tau=0.1)
    compressor.add(0, torch.ones(100))
    (words,) = compressor.encode()
    assert words.nbytes == 400


def test_messages_of_unequal_length_are_averaged():
    ranks = [strom(3, 0.5, world_size=2) for _ in range(2)]
    ranks[0].add(0, torch.tensor([1.0, -1.0, 1.0]))
    ranks[1].add(0, torch.tensor([1.0, 0.0, 0.0]))
    messages = [rank.encode() for rank in ranks]
    assert [message[0].numel() for message in messages] == [3, 1]
    out = torch.empty(3)
    ranks[0].decode(messages)
    ranks[0].write(0, out)
    assert out.tolist() == [0.5, -0.25, 0.25]
