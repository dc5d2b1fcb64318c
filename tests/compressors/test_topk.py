"""Claims about top-k with error feedback."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.collectives.gtopk import aggregate
from comm_plan.compressors import build, topk_at_once
from comm_plan.compressors.base import Context, Slot
from comm_plan.compressors.momentum import Momentum
from comm_plan.compressors.topk import TopKCompressor
from comm_plan.compressors.topk_at_once import TopKAtOnce, runs_of
from comm_plan.plans.compression import TopK, selected, spec_class
from comm_plan.tests.support.harness import run_ranks

pytestmark = pytest.mark.usefixtures("as_on_a_gpu_too")

NUMELS = (40, 1, 9)
CPU = torch.device("cpu")


def topk(world_size=1, rank=0, collective="allgather", numels=NUMELS, **options):
    options.setdefault("density", 0.1)
    slots = [Slot(f"t{i}", numel) for i, numel in enumerate(numels)]
    context = Context(world_size, rank, torch.device("cpu"))
    return build(TopK(**options), collective, slots, context)


def random_gradients(seed, world_size, numels=NUMELS):
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(n, generator=generator) for n in numels]] + [
        [torch.randn(n, generator=generator) for n in numels]
        for _ in range(world_size - 1)
    ]


def add_all(ranks, gradients):
    for rank, mine in zip(ranks, gradients, strict=True):
        for index, gradient in enumerate(mine):
            rank.add(index, gradient)


def written(rank):
    outs = [torch.full((slot.numel,), float("nan")) for slot in rank.slots]
    for index, out in enumerate(outs):
        rank.write(index, out)
    return outs


def total_of_residuals(ranks, index):
    return sum(rank.state["residual"][index].double() for rank in ranks)


def gtopk_tree(ranks):
    """Combine the messages on rank 0, slot by slot; what is dropped is put back."""
    counts = list(ranks[0].counts)
    messages = [[part.split(counts) for part in rank.encode()] for rank in ranks]
    combined = []
    for index, (slot, k) in enumerate(zip(ranks[0].slots, counts, strict=True)):
        total = torch.zeros(slot.numel)
        for values, indices in messages:
            total[indices[index].long()] += values[index]
        keep = total.abs().topk(k).indices
        dropped = total.clone()
        dropped[keep] = 0
        left = dropped.nonzero().flatten().int()
        ranks[-1].put_back(index, dropped[left], left)
        combined.append((total[keep], keep.int()))
    values, indices = (torch.cat(parts) for parts in zip(*combined, strict=True))
    for rank in ranks:
        rank.decode([(values.clone(), indices.clone())])


def allgather(ranks):
    messages = [tuple(part.clone() for part in rank.encode()) for rank in ranks]
    for rank in ranks:
        rank.decode(messages)


COLLECTIVES = {"allgather": allgather, "gtopk": gtopk_tree}


@pytest.mark.parametrize("collective", COLLECTIVES)
@given(st.integers(1, 9), st.integers(0, 10**6), st.floats(0.01, 1))
@settings(max_examples=25)
def test_no_gradient_is_lost(collective, world_size, seed, density):
    ranks = [
        topk(world_size, r, collective, density=density) for r in range(world_size)
    ]
    for step in range(3):
        gradients = random_gradients(seed + step, world_size)
        before = [total_of_residuals(ranks, i) for i in range(len(NUMELS))]
        add_all(ranks, gradients)
        COLLECTIVES[collective](ranks)
        means = [written(rank) for rank in ranks]
        for index in range(len(NUMELS)):
            given_ = before[index] + sum(mine[index].double() for mine in gradients)
            applied = world_size * means[0][index].double()
            kept = total_of_residuals(ranks, index)
            torch.testing.assert_close(applied + kept, given_, rtol=0, atol=1e-5)
            assert all(torch.equal(mean[index], means[0][index]) for mean in means)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("aggregated", [False, True])
@pytest.mark.parametrize("as_printed", [False, True])
def test_undo_returns_everything_to_the_residuals(
    collective, world_size, aggregated, as_printed
):
    ranks = [
        topk(world_size, r, collective, as_printed=as_printed)
        for r in range(world_size)
    ]
    gradients = random_gradients(11, world_size)
    add_all(ranks, gradients)
    if aggregated:
        COLLECTIVES[collective](ranks)
    else:
        for rank in ranks:
            rank.encode()
    for rank in ranks:
        rank.undo()
    for index in range(len(NUMELS)):
        expected = sum(mine[index].double() for mine in gradients)
        kept = total_of_residuals(ranks, index)
        torch.testing.assert_close(kept, expected, rtol=0, atol=1e-5)


def test_undo_of_an_allgather_is_exact():
    compressor = topk()
    (gradients,) = random_gradients(3, 1)
    add_all([compressor], [gradients])
    allgather([compressor])
    compressor.undo()
    for residual, gradient in zip(compressor.state["residual"], gradients, strict=True):
        assert torch.equal(residual, gradient)


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=5),
    st.floats(1e-4, 1),
    st.floats(0, 1),
)
@settings(max_examples=50)
def test_wire_bytes_are_those_of_the_spec(numels, density, floor):
    compressor = topk(numels=numels, density=density)
    compressor.density_floor = floor
    add_all([compressor], [[torch.randn(n) for n in numels]])
    message = compressor.encode()
    spec = TopK(density=max(density, floor))
    assert sum(part.nbytes for part in message) == spec.message_nbytes(
        numels, "allgather"
    )
    assert list(compressor.counts) == [selected(n, spec.density) for n in numels]


def test_the_largest_elements_of_each_tensor_are_sent():
    compressor = topk(numels=(4, 3), density=(0.5, 0.3))
    compressor.add(1, torch.tensor([1.0, -100.0, 5.0]))
    compressor.add(0, torch.tensor([0.1, -3.0, 0.2, 2.0]))
    values, indices = compressor.encode()
    assert values.tolist() == [-3.0, 2.0, -100.0]
    assert indices.tolist() == [1, 3, 1]


def test_what_is_not_sent_waits_until_it_is_large():
    compressor = topk(numels=(2,), density=0.5)
    for _ in range(2):
        compressor.add(0, torch.tensor([1.0, 0.75]))
        values, indices = compressor.encode()
    assert (values.tolist(), indices.tolist()) == ([1.5], [1])
    assert compressor.state["residual"][0].tolist() == [1.0, 0.0]


def test_a_density_warm_up_changes_the_message_from_step_to_step():
    compressor = topk(numels=(100,), density=0.01)
    for floor, k in [(0.25, 25), (0.0725, 8), (0.0, 1)]:
        compressor.density_floor = floor
        compressor.add(0, torch.randn(100))
        allgather([compressor])
        assert written(compressor)[0].count_nonzero() == k


@pytest.mark.parametrize("kind", ["topk", "model_topk"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_masks_clear_residual_and_velocity_of_what_had_waited(kind, nesterov):
    context = Context(
        1, 0, torch.device("cpu"), momentum_of=lambda _: Momentum(0.5, nesterov)
    )
    spec = spec_class(kind).at_density(0.5)
    compressor = build(spec, "allgather", [Slot("w", 2)], context)
    ahead = 1.5 if nesterov else 1.0

    def sent(*gradient):
        compressor.add(0, torch.tensor(gradient))
        return compressor.encode()[0].tolist()

    def state(name):
        return compressor.state[name][0].tolist()

    assert sent(1.0, 4.0) == [4.0 * ahead]
    assert (state("residual"), state("velocity")) == ([ahead, 0.0], [1.0, 4.0])
    # velocities (1.5, 2); of steps (1 + 1.5 / 2, 2 / 2) with Nesterov, else they
    first = ahead + (1.75 if nesterov else 1.5)
    assert sent(1.0, 0.0) == [first]
    second = 1.0 if nesterov else 2.0
    assert (state("residual"), state("velocity")) == ([0.0, second], [0.0, 2.0])


def test_what_the_tree_drops_waits_again_and_its_velocity_begins_anew():
    slots = [Slot("t", 2)]

    def left(transport):
        mine = torch.tensor([[1.0, 0.0], [0.0, 3.0]][transport.rank])
        context = Context(2, transport.rank, CPU, momentum_of=lambda _: Momentum(0.5))
        compressor = build(TopK(density=0.5), "gtopk", slots, context)
        for _ in range(2):
            compressor.add(0, mine)
            aggregate(transport, compressor)
        return {name: of[0].tolist() for name, of in compressor.state.items()}

    loser, _ = run_ranks(2, left)
    assert loser == {"residual": [2.5, 0.0], "velocity": [0.0, 0.0]}


def test_clip_norm_limits_what_is_accumulated():
    compressor = topk(numels=(2, 2), density=1.0, clip_norm=5.0)
    compressor.add(0, torch.tensor([30.0, 40.0]))
    compressor.add(1, torch.tensor([0.3, 0.4]))
    expected = torch.tensor([3.0, 4.0, 0.3, 0.4])
    torch.testing.assert_close(compressor.encode()[0], expected)


def test_a_zero_gradient_survives_clipping():
    compressor = topk(numels=(2,), density=1.0, clip_norm=5.0)
    compressor.add(0, torch.zeros(2))
    assert compressor.encode()[0].tolist() == [0.0, 0.0]


def test_padding_of_a_gtopk_result_changes_nothing():
    compressor = topk(2, collective="gtopk", numels=(5,), density=0.6)
    compressor.add(0, torch.tensor([0.0, 4.0, 0.0, 0.0, 2.0]))
    compressor.encode()
    indices = torch.tensor([1, 0, 0], dtype=torch.int32)
    compressor.decode([(torch.tensor([4.0, 0.0, 0.0]), indices)])
    assert written(compressor)[0].tolist() == [0.0, 2.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gradients_leave_nothing_behind(dtype):
    compressor = topk(numels=(64,), density=0.1)
    gradient = torch.randn(64).to(dtype)
    compressor.add(0, gradient)
    allgather([compressor])
    out = torch.empty(64, dtype=dtype)
    compressor.write(0, out)
    assert torch.equal(out + compressor.state["residual"][0].to(dtype), gradient)


@given(st.lists(st.integers(1, 20), max_size=30))
def test_runs_are_of_small_neighbours_and_small_themselves(numels):
    runs = runs_of(numels, 10)
    inside = [index for run in runs for index in range(run.start, run.stop)]
    assert inside == [index for index, numel in enumerate(numels) if numel < 10]
    assert all(sum(numels[run]) < 10 for run in runs)
    for run, following in pairwise(runs):  # as long as they can be
        if run.stop == following.start:
            assert sum(numels[run]) + numels[following.start] >= 10


@pytest.mark.parametrize("nesterov", [None, False, True])
def test_selecting_at_once_is_selecting_tensor_by_tensor(nesterov, monkeypatch):
    numels = (50, 3, 700, 1, 90, 400)
    monkeypatch.setattr(topk_at_once, "runs_of", lambda numels: runs_of(numels, 500))
    slots = [Slot(f"t{index}", numel) for index, numel in enumerate(numels)]
    given_momentum = None if nesterov is None else lambda _: Momentum(0.9, nesterov)
    context = Context(1, 0, torch.device("cpu"), momentum_of=given_momentum)
    spec = TopK(density=(0.1, 1.0, 0.01, 1.0, 0.2, 0.5), clip_norm=20.0)
    made = TopKCompressor, TopKAtOnce
    by_tensor, at_once = (own(spec, "allgather", slots, context) for own in made)
    generator = torch.Generator().manual_seed(0)
    for step in range(4):
        for index, numel in enumerate(numels):
            gradient = torch.randn(numel, generator=generator).round(decimals=1)
            for compressor in (by_tensor, at_once):
                compressor.density_floor = 0.3 if step == 1 else 0.0
                compressor.add(index, gradient)
        for compressor in (by_tensor, at_once):
            allgather([compressor])
        assert all(map(torch.equal, written(by_tensor), written(at_once)))
        for quantity, tensors in by_tensor.state.items():
            assert all(map(torch.equal, tensors, at_once.state[quantity]))
