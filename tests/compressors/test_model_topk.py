"""Top-k over a whole bucket selects as if its tensors were one vector."""

import torch

from comm_plan.compressors.base import Context, Slot
from comm_plan.compressors.model_topk import ModelTopKCompressor
from comm_plan.plans import ModelTopK


def compressor(numels, **spec):
    slots = [Slot(f"t{i}", numel) for i, numel in enumerate(numels)]
    context = Context(world_size=1, rank=0, device=torch.device("cpu"))
    return ModelTopKCompressor(ModelTopK(**spec), "allgather", slots, context)


def step(bucket, gradients):
    """Return what one rank alone applies."""
    for index, gradient in enumerate(gradients):
        bucket.add(index, gradient)
    bucket.decode([bucket.encode()])
    applied = [torch.empty_like(gradient) for gradient in gradients]
    for index, out in enumerate(applied):
        bucket.write(index, out)
    return applied


def test_a_tensor_of_large_gradients_takes_all_places():
    """Two tensors scaled 100 and 1e-6: by tensor each would send ten elements."""
    torch.manual_seed(0)
    gradients = [100 * torch.randn(100), 1e-6 * torch.randn(100)]
    applied = step(compressor([100, 100], density=0.1), gradients)
    assert applied[0].count_nonzero() == 20
    assert applied[1].count_nonzero() == 0


def test_it_is_the_top_of_the_concatenation_and_the_rest_is_kept():
    torch.manual_seed(1)
    gradients = [torch.randn(n) for n in (7, 30, 1)]
    bucket = compressor([7, 30, 1], density=0.2)
    applied = torch.cat(step(bucket, gradients))
    whole = torch.cat(gradients)
    largest = whole.abs().topk(8).indices
    expected = torch.zeros_like(whole)
    expected[largest] = whole[largest]
    assert torch.equal(applied, expected)
    assert torch.equal(torch.cat(bucket.state["residual"]), whole - expected)


def test_what_was_kept_is_sent_once_it_has_grown():
    bucket = compressor([1, 1], density=0.5)
    gradients = [torch.tensor([3.0]), torch.tensor([2.0])]
    step(bucket, gradients)
    second = step(bucket, gradients)
    assert [part.item() for part in second] == [0.0, 4.0]


def test_a_message_that_was_not_applied_returns_to_the_residual():
    bucket = compressor([2, 2], density=0.25)
    bucket.add(0, torch.tensor([1.0, 2.0]))
    bucket.add(1, torch.tensor([5.0, 4.0]))
    bucket.encode()
    bucket.undo()
    assert torch.cat(bucket.state["residual"]).tolist() == [1.0, 2.0, 5.0, 4.0]
