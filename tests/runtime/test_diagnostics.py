"""Residual norms and the delta of LAGS against their definitions."""

import errno
import json
import os
import shutil

import pytest
import torch

from comm_plan import parallelize
from comm_plan.errors import InputError, OutputError
from comm_plan.plans import (
    Dense,
    DoubleSqueeze,
    ModelTopK,
    PartitionTopK,
    SparDL,
    TernGrad,
    TopK,
    Vgc,
)
from comm_plan.plans.compression import selected
from comm_plan.plans.parameters import trainable
from comm_plan.runtime import diagnostics
from comm_plan.runtime.diagnostics import measure, writer
from comm_plan.runtime.trainer import Options, train
from comm_plan.tests.runtime.test_swap import replan
from comm_plan.tests.runtime.trainings import FEATURES, net, plan_for, workload
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport

DENSITY = 0.1


def loss_of(model, rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return model(torch.randn(6, FEATURES, generator=generator)).square().mean()


def gradients(model, rank, step):
    """Return this rank's own gradient of every parameter, by name, flat."""
    reference = net()
    reference.load_state_dict(model.state_dict())
    loss_of(reference, rank, step).backward()
    return {n: p.grad.flatten() for n, p in trainable(reference).items()}


def residuals(engine):
    tensors = engine.remembered()
    return {name: kept["residual"].clone() for name, kept in tensors.items()}


def steps_of(transport, collective, floor, steps=3, clip_norm=None):
    """Return for each step, by parameter: acc, sent, and what is measured."""
    model = net()
    spec = TopK(density=DENSITY)
    plan = plan_for(model, transport.world_size, spec, collective)
    engine = parallelize(model, plan, transport=transport)
    engine.set_density_floor(floor)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = []
    for step in range(steps):
        before = residuals(engine)
        own = gradients(model, transport.rank, step)
        optimizer.zero_grad()
        loss_of(model, transport.rank, step).backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        acc = {name: before[name] + own[name] for name in own}
        applied = {n: p.grad.flatten().clone() for n, p in trainable(model).items()}
        seen.append((acc, applied, residuals(engine), measure(engine)))
    engine.close()
    return seen


def expected_delta(sums, sent, k):
    """Return Eq. 21: the random choice of k of d leaves (1 - k/d) of the square."""
    d = sums.numel()
    return float((sums - sent).square().sum() / ((1 - k / d) * sums.square().sum()))


@pytest.mark.parametrize("floor", [0.0, 0.3])
@pytest.mark.parametrize("collective", ["allgather", "gtopk"])
def test_delta_is_eq_21_of_what_the_ranks_accumulated_and_sent(collective, floor):
    world_size = 3
    ranks = run_ranks(world_size, steps_of, collective, floor)
    for step in zip(*ranks, strict=True):
        figures = [measured for _, _, _, measured in step]
        assert figures.count(figures[0]) == world_size
        for name in trainable(net()):
            accumulated = [acc[name].double() for acc, *_ in step]
            d = accumulated[0].numel()
            k = selected(d, max(DENSITY, floor))
            if collective == "allgather":  # each sends the k largest of its own
                sent = sum(top(acc, k) for acc in accumulated)
            else:  # all apply one choice
                sent = world_size * step[0][1][name].double()
            delta = expected_delta(sum(accumulated), sent, k)
            assert figures[0][f"delta/{name}"] == pytest.approx(delta, rel=1e-4)
            norm = float(sum(left[name].double() for _, _, left, _ in step).norm())
            found = figures[0][f"residual_norm/{name}"]
            assert found == pytest.approx(norm, rel=1e-5)


def top(values, k):
    """Return ``values`` with all but the k largest magnitudes zero."""
    kept = torch.zeros_like(values)
    chosen = values.abs().topk(k).indices
    kept[chosen] = values[chosen]
    return kept


@pytest.mark.parametrize("clip_norm", [None, 1e-3])
def test_the_largest_of_one_rank_never_lose_to_a_random_choice(clip_norm):
    """With one rank top-k is the best choice of k, so Assumption 1 holds."""
    for *_, figures in steps_of(
        LocalTransport(), "allgather", 0.0, clip_norm=clip_norm
    ):
        deltas = [v for name, v in figures.items() if name.startswith("delta/")]
        assert len(deltas) == 4
        assert all(0 < delta <= 1 for delta in deltas)


def test_everything_sent_leaves_nothing():
    for *_, figures in steps_of(LocalTransport(), "allgather", 1.0):
        assert set(figures.values()) == {0.0}


@pytest.mark.parametrize(
    ("spec", "collective", "kinds"),
    [
        (Dense(), "allreduce", set()),
        (TernGrad(), "allgather", set()),
        (Vgc(), "allgather", {"residual_norm"}),
        (TopK(density=0.1), "gtopk", {"residual_norm", "delta"}),
        (TopK(density=0.1, as_printed=True), "gtopk", {"residual_norm"}),
        (TopK(density=0.1, as_printed=True), "allgather", {"residual_norm", "delta"}),
        (ModelTopK(density=0.1), "allgather", {"residual_norm"}),
        (PartitionTopK(density=0.1), "allreduce", {"residual_norm"}),
        (SparDL(density=0.1), "spardl", {"residual_norm"}),
        (DoubleSqueeze(), "two_pass", {"residual_norm"}),
    ],
    ids=[
        *("dense", "terngrad", "vgc", "topk", "printed", "printed, by all-gather"),
        *("model", "partition", "spardl", "doublesqueeze"),
    ],
)
def test_only_what_a_method_has_is_measured(tmp_path, spec, collective, kinds):
    found = lines_of(tmp_path / "d.jsonl", spec, collective)[0]
    names = {name for name in found if name != "step"}
    assert {name.split("/")[0] for name in names} == kinds
    assert names == {f"{kind}/{n}" for kind in kinds for n in trainable(net())}


def lines_of(path, spec, collective="allgather", every=1, **options):
    def rank(transport):
        training = workload()
        plan = plan_for(training.model, 2, spec, collective)
        options_here = Options(watcher=writer(path, every), **{"steps": 8, **options})
        return train(training, plan, transport, options_here).parameters_sha256

    assert len(set(run_ranks(2, rank))) == 1
    if path.suffix != ".jsonl":
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_plan_that_has_sent_nothing_yet_has_no_delta():
    """What waits came with it: no part of that was chosen by its method."""
    model = net()
    sparse = plan_for(model, 1, TopK(density=DENSITY), "allgather")
    with parallelize(model, sparse, transport=LocalTransport()) as engine:
        loss_of(model, 0, 0).backward()
        figures = measure(engine)
        engine.swap(sparse, replan())
        assert measure(engine) == {
            name: norm for name, norm in figures.items() if "residual_norm" in name
        }
        model.zero_grad()
        loss_of(model, 0, 1).backward()
        assert measure(engine).keys() == figures.keys()


def test_every_so_many_steps_make_a_line(tmp_path):
    path = tmp_path / "d.jsonl"
    lines = lines_of(path, TopK(density=0.1), every=3)
    assert [line["step"] for line in lines] == [3, 6]
    lines = lines_of(path, TopK(density=0.1), every=4)
    assert [line["step"] for line in lines] == [4, 8], "of another run"


def test_a_resumed_run_adds_its_lines(tmp_path):
    path, folder = tmp_path / "d.jsonl", tmp_path / "checkpoints"

    def lines(steps, **options):
        spec = TopK(density=0.1)
        return lines_of(path, spec, every=2, steps=steps, checkpoint=folder, **options)

    lines(4)
    with path.open("a") as stream:  # which was killed after its last checkpoint
        stream.write('{"step": 6}\n{"step": 8, "residual_norm/0.w')
    resumed = lines(8, resume=True)
    assert [line["step"] for line in resumed] == [2, 4, 6, 8]
    assert all(len(line) > 1 for line in resumed)


def test_a_resumed_run_may_measure_less_often(tmp_path):
    """Its first line may be the first of a run that began with it, too."""
    path, spec = tmp_path / "d.jsonl", TopK(density=0.1)
    lines_of(path, spec, every=2, steps=3, checkpoint=tmp_path / "checkpoints")
    resumed = lines_of(
        path, spec, every=4, checkpoint=tmp_path / "checkpoints", resume=True
    )
    assert [line["step"] for line in resumed] == [2, 4, 8]


def test_measuring_changes_nothing(tmp_path):
    def outcome(watch):
        training = workload(world_size=1)
        plan = plan_for(training.model, 1, TopK(density=0.1), "allgather")
        options = Options(**({"watcher": watch} if watch else {}))
        return train(training, plan, LocalTransport(), options).parameters_sha256

    assert outcome(writer(tmp_path / "d.jsonl", 1)) == outcome(None)


def test_tensorboard_shows_the_same_figures(tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    spec = TopK(density=0.1)
    lines_of(tmp_path / "board", spec, every=4)
    lines = lines_of(tmp_path / "d.jsonl", spec, every=4)
    events = accumulator.EventAccumulator(str(tmp_path / "board")).Reload()
    assert set(events.Tags()["scalars"]) == set(lines[0]) - {"step"}
    for name in events.Tags()["scalars"]:
        shown = [(event.step, event.value) for event in events.Scalars(name)]
        told = [(line["step"], pytest.approx(line[name])) for line in lines]
        assert shown == told


def test_tensorboard_shows_each_step_of_a_resumed_run_once(tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    board, folder = tmp_path / "board", tmp_path / "checkpoints"
    lines_of(board, TopK(density=0.1), steps=7, checkpoint=folder)
    shutil.rmtree(folder / "step-00000007")  # the run was killed before it
    lines_of(board, TopK(density=0.1), checkpoint=folder, resume=True)
    events = accumulator.EventAccumulator(str(board)).Reload()
    shown = [event.step for event in events.Scalars("residual_norm/0.weight")]
    assert shown == [1, 2, 3, 4, 5, 6, 7, 8]


def test_what_cannot_be_written_is_said_before_the_training(tmp_path, monkeypatch):
    with pytest.raises(OutputError, match="absent"):
        writer(tmp_path / "absent" / "d.jsonl", 1)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(diagnostics, "find_spec", lambda name: name)
    for board in ("file", "file/board"):
        with pytest.raises(OutputError, match=f"{board}: cannot be made"):
            writer(tmp_path / board, 1)
    monkeypatch.setattr(diagnostics, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'comm-plan\[tensorboard\]'"):
        writer(tmp_path / "board", 1)


def test_a_disk_that_fills_ends_the_training_in_a_line(tmp_path, small_disk):
    with pytest.raises(OutputError, match=r"d\.jsonl: cannot be written: File too lar"):
        lines_of(tmp_path / "d.jsonl", TopK(density=0.1), steps=50)


def test_tensorboard_on_a_disk_that_fills_ends_it_likewise(tmp_path, monkeypatch):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")

    class Full:
        def __init__(self, path, purge_step):
            pass

        def add_scalar(self, *figure):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tensorboard, "SummaryWriter", Full)
    with pytest.raises(OutputError, match="board: cannot be written: No space left"):
        lines_of(tmp_path / "board", TopK(density=0.1))
