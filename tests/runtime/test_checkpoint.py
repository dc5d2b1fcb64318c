"""Checkpoints: whole or not there, on one file system or on several."""

import copy
import hashlib
import itertools
import os
import resource
import shutil
import time
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from comm_plan.compressors.base import RESIDUAL
from comm_plan.errors import InputError, OutputError
from comm_plan.plans import TopK
from comm_plan.runtime import checkpoint, checkpoint_file
from comm_plan.runtime.checkpoint import KEEP, Position
from comm_plan.runtime.learning_rate import UNCHANGED, LearningRate, Steps
from comm_plan.runtime.trainer import Options, train
from comm_plan.tests.runtime.trainings import (
    EPOCH_STEPS,
    FEATURES,
    Killed,
    dying,
    net,
    plan_for,
    workload,
)
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport


def run(folder, steps, transport=None, *, every=1, dies=None, **options):
    transport = transport or LocalTransport()
    size = transport.world_size
    training = workload(world_size=size)
    if dies:
        training = dying(training, *dies)
    plan = plan_for(net(), size, TopK(density=0.1), "allgather")
    options = Options(steps=steps, checkpoint=folder, checkpoint_every=every, **options)
    return train(training, plan, transport, options)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_a_resumed_run_is_asked_for_counts(tmp_path):
    """Its rate is its own, not the one of the run before."""
    sums = []
    for rate in (0.1, 0.0):
        folder = tmp_path / str(rate)
        begun = run(folder, 2)
        training = workload(
            world_size=1, optimizer=lambda p, lr=rate: torch.optim.SGD(p, lr=lr)
        )
        options = Options(steps=4, checkpoint=folder, resume=True)
        plan = plan_for(net(), 1, TopK(density=0.1), "allgather")
        resumed = train(training, plan, LocalTransport(), options)
        sums.append(resumed.parameters_sha256 == begun.parameters_sha256)
    assert sums == [False, True]


def test_a_run_that_is_resumed_without_its_schedule_has_the_rate_of_its_optimizer(
    tmp_path,
):
    made = []

    def optimizer(parameters):
        made.append(torch.optim.SGD(parameters, lr=0.1))
        return made[-1]

    plan = plan_for(net(), 1, TopK(density=0.1), "allgather")
    halved = LearningRate(decay=Steps(epochs=(0.0,), factor=0.5))
    for steps, rate in ((2, halved), (4, UNCHANGED)):
        options = Options(
            steps=steps, checkpoint=tmp_path, resume=steps > 2, learning_rate=rate
        )
        training = workload(world_size=1, optimizer=optimizer)
        train(training, plan, LocalTransport(), options)
    assert [each.param_groups[0]["lr"] for each in made] == [0.05, 0.1]


class Counting(torch.optim.SGD):
    """Keeps in its groups what it gathers, as some that adapt their rate do."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.param_groups[0]["steps"] = 0

    def step(self, closure=None):
        self.param_groups[0]["steps"] += 1
        super().step(closure)


def train_twice(folder, optimizer, before, after):
    """Train so many steps, then resume up to so many; yield the number after each."""
    plan = plan_for(net(), 1, TopK(density=0.1), "allgather")
    for resume, count in ((False, before), (True, after)):
        training = workload(world_size=1, optimizer=optimizer)
        options = Options(steps=count, checkpoint=folder, resume=resume)
        train(training, plan, LocalTransport(), options)
        yield count


def test_what_an_optimizer_gathers_in_its_groups_goes_on(tmp_path):
    steps = []

    def optimizer(parameters):
        steps.append(Counting(parameters))
        return steps[-1]

    for count in train_twice(tmp_path, optimizer, 2, 5):
        assert steps[-1].param_groups[0]["steps"] == count


class Weighted(torch.optim.SGD):
    """Keeps a tensor of several numbers in its groups."""

    def __init__(self, parameters, weights):
        super().__init__(parameters, lr=0.1)
        self.param_groups[0]["weights"] = weights


@pytest.mark.parametrize("asked", [[1.0, 2.0], [1.0, 3.0]], ids=["the same", "others"])
def test_an_optimizer_may_keep_tensors_in_its_groups(tmp_path, asked):
    optimizers = []

    def optimizer(parameters):
        weights = torch.tensor(asked if optimizers else [1.0, 2.0])
        optimizers.append(Weighted(parameters, weights))
        return optimizers[-1]

    for _ in train_twice(tmp_path, optimizer, 2, 4):
        pass
    assert optimizers[-1].param_groups[0]["weights"].tolist() == asked


def backwards(parameters):
    return torch.optim.SGD([*parameters][::-1], lr=0.05, momentum=0.9)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"batch_size": 5}, "of a run with batch size .*, this one has 5"),
        ({"optimizer": torch.optim.Adam}, "of a run with optimizer SGD, this one has"),
        ({"model": nn.Linear(FEATURES, 3)}, "is of another model: "),
        ({"optimizer": backwards}, "parameters, or the same in another order"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, changes, problem):
    run(tmp_path, 2)
    training = workload(world_size=1, **changes)
    plan = plan_for(training.model, 1, TopK(density=0.1), "allgather")
    options = Options(steps=4, checkpoint=tmp_path, resume=True)
    with pytest.raises(InputError, match=problem):
        train(training, plan, LocalTransport(), options)
    with pytest.raises(InputError, match="with seed 0, this one has 7"):
        run(tmp_path, 4, resume=True, seed=7)


def test_a_checkpoint_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "COMMON", (*checkpoint.COMMON, "more"))
    run(tmp_path, 2)
    with pytest.raises(InputError, match="lacks 'more': another version of comm-plan"):
        run(tmp_path, 4, resume=True)


def test_an_evaluation_that_fails_costs_no_epoch(tmp_path):
    def fail(model):
        raise ValueError("no such class")

    training = workload(world_size=1, evaluate=fail)
    plan = plan_for(net(), 1, TopK(density=0.1), "allgather")
    with pytest.raises(ValueError, match="no such class"):
        train(training, plan, LocalTransport(), Options(checkpoint=tmp_path))
    assert names(tmp_path) == [f"step-{EPOCH_STEPS:08d}"]


def test_the_two_newest_are_kept(tmp_path):
    run(tmp_path, 4)
    assert names(tmp_path) == ["step-00000003", "step-00000004"]
    assert KEEP == 2


def test_what_only_looks_like_a_checkpoint_does_not_count_as_one(tmp_path):
    (tmp_path / "step-00000009").write_text("a file of someone's own")
    (tmp_path / "step-00000009-best").mkdir()
    run(tmp_path, 4)
    held = ["step-00000003", "step-00000004", "step-00000009", "step-00000009-best"]
    assert names(tmp_path) == held


def test_the_end_of_an_epoch_and_of_the_run_are_saved_once(tmp_path):
    run(tmp_path, EPOCH_STEPS + 1, every=0)
    assert names(tmp_path) == [
        f"step-{step:08d}" for step in (EPOCH_STEPS, EPOCH_STEPS + 1)
    ]


def test_a_run_killed_while_writing_resumes_from_the_checkpoint_before(
    tmp_path, monkeypatch
):
    whole_file = checkpoint_file.write

    def write(path, content):
        if path.parent.name == "step-00000003.partial":
            path.parent.mkdir()
            raise Killed
        return whole_file(path, content)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(checkpoint_file, "write", write)
        run(tmp_path / "a", 4)
    assert names(tmp_path / "a") == [
        "step-00000001", "step-00000002", "step-00000003.partial"
    ]  # fmt: skip
    resumed = run(tmp_path / "a", 4, resume=True)
    whole = run(tmp_path / "b", 4)
    assert len(resumed.iterations_s) == 2
    assert resumed.parameters_sha256 == whole.parameters_sha256
    assert names(tmp_path / "a") == names(tmp_path / "b")


def test_an_unfinished_file_of_another_step_is_removed(tmp_path):
    run(tmp_path, 2)
    leftover = tmp_path / "step-00000009.partial"
    leftover.mkdir()
    (leftover / "rank-00000.pt").write_bytes(b"half a file")
    run(tmp_path, 3, resume=True)
    assert names(tmp_path) == ["step-00000002", "step-00000003"]


def test_hosts_without_a_common_file_system_hold_their_own_ranks_files(tmp_path):
    """Each rank has a folder of its own here, as hosts would."""

    def rank(transport, steps, resume):
        return run(tmp_path / str(transport.rank), steps, transport, resume=resume)

    run_ranks(2, rank, 3, False)
    for own in (0, 1):
        files = {path.name for path in (tmp_path / str(own)).glob("step-*/*")}
        assert files == {f"rank-{own:05d}.pt", f"rank-{own:05d}.pt.sha256"}
    resumed = run_ranks(2, rank, 7, True)
    whole = run_ranks(2, lambda t: run(tmp_path / f"whole-{t.rank}", 7, t))
    assert {r.parameters_sha256 for r in resumed} == {whole[0].parameters_sha256}


@pytest.mark.parametrize("behind", [0, 1])
def test_hosts_resume_from_the_newest_checkpoint_that_all_have(tmp_path, behind):
    """One host was killed before it renamed; the other had renamed already."""

    def rank(transport, steps, resume):
        return run(tmp_path / str(transport.rank), steps, transport, resume=resume)

    run_ranks(2, rank, 3, False)
    newest = tmp_path / str(behind) / "step-00000003"
    newest.rename(newest.with_suffix(".partial"))
    records = run_ranks(2, rank, 7, True)
    whole = run_ranks(2, lambda t: run(tmp_path / f"whole-{t.rank}", 7, t))
    assert [len(record.iterations_s) for record in records] == [5, 5]
    assert records[0].parameters_sha256 == whole[0].parameters_sha256
    for folder in (tmp_path / "0", tmp_path / "1"):
        assert names(folder) == ["step-00000006", "step-00000007"]


def test_nothing_to_resume_from_is_said(tmp_path):
    with pytest.raises(InputError, match=r"no checkpoint to resume from$"):
        run(tmp_path / "absent", 2, resume=True)
    assert not (tmp_path / "absent").exists()


def total(parts):
    """Return the sum of what ranks have left of each parameter."""
    sums = {}
    for part in parts:
        for name, quantities in part.items():
            sums[name] = sums.get(name, 0) + quantities[RESIDUAL].double()
    return sums


def left(folder):
    """Return what the rank whose checkpoint it is had left."""
    (file,) = folder.glob("step-00000003/rank-*.pt")
    (part,) = torch.load(file, weights_only=True)["engine"]["ranks"].values()
    return part


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("hosts", [1, 2])
def test_another_number_of_ranks_goes_on_and_what_waits_keeps_its_weight(
    tmp_path, ranks, hosts
):
    run_ranks(2, lambda t: run(tmp_path / str(t.rank), 3, t))
    before = total(left(tmp_path / str(rank)) for rank in (0, 1))
    hosts = min(hosts, ranks)
    if hosts == 1:
        for file in (tmp_path / "1" / "step-00000003").iterdir():
            file.rename(tmp_path / "0" / "step-00000003" / file.name)
    remembered = {}

    @contextmanager
    def watch(engine):
        yield
        remembered[engine.transport.rank] = copy.deepcopy(engine.remembered())

    def rank(transport):
        folder = tmp_path / str(min(transport.rank, hosts - 1))
        run(folder, 3, transport, resume=True, on_engine=watch)
        return run(folder, 4, transport, resume=True).parameters_sha256

    assert len(set(run_ranks(ranks, rank))) == 1
    after = total(remembered.values())
    assert before.keys() == after.keys()
    for name, residual in before.items():
        torch.testing.assert_close(after[name] / ranks, residual / 2)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_rank_whose_files_are_lost_is_missed_unless_the_run_is_elastic(
    tmp_path, ranks
):
    """Also where as many files are left as there are ranks."""
    run_ranks(2, lambda t: run(tmp_path, 3, t))
    (tmp_path / "step-00000003" / "rank-00001.pt").unlink()
    with pytest.raises(InputError, match="files of 1 of 2 ranks are not on these"):
        run_ranks(ranks, lambda t: run(tmp_path, 4, t, resume=True))
    elastic = run_ranks(ranks, lambda t: run(tmp_path, 4, t, elastic=True))
    assert [record.steps for record in elastic] == [4] * ranks


@pytest.mark.parametrize("new", [0, 1])
def test_an_elastic_run_goes_on_with_a_host_that_is_new(tmp_path, new):
    """Unless it is the one that had the model."""

    def rank(transport, steps):
        folder = tmp_path / str(transport.rank)
        return run(folder, steps, transport, elastic=True)

    run_ranks(2, rank, 3)
    shutil.rmtree(tmp_path / str(new))
    if new == 0:
        with pytest.raises(InputError, match="holds checkpoints of another run"):
            run_ranks(2, rank, 5)
        return
    records = run_ranks(2, rank, 5)
    assert [len(record.iterations_s) for record in records] == [2, 2]
    assert len({record.parameters_sha256 for record in records}) == 1


def test_an_elastic_run_goes_on_with_a_host_that_was_away(tmp_path):
    def rank(transport, steps):
        folder = tmp_path / str(transport.rank)
        return run(folder, steps, transport, elastic=True)

    run_ranks(2, rank, 3)
    run_ranks(1, rank, 5)
    records = run_ranks(2, rank, 7)
    assert [record.steps for record in records] == [7, 7]
    assert names(tmp_path / "0") == names(tmp_path / "1")


def test_files_of_runs_of_different_sizes_are_no_reason_to_wait(tmp_path):
    """Of one step: that of one rank is from after the other host was away."""
    run_ranks(2, lambda t: run(tmp_path / str(t.rank), 3, t))
    shutil.rmtree(tmp_path / "0")
    run(tmp_path / "0", 3)
    records = run_ranks(2, lambda t: run(tmp_path / str(t.rank), 5, t, elastic=True))
    assert len({record.parameters_sha256 for record in records}) == 1


def test_an_elastic_run_begins_where_there_is_nothing_to_go_on_from(tmp_path):
    assert run(tmp_path, 2, elastic=True).steps == 2
    assert len(run(tmp_path, 3, elastic=True).iterations_s) == 1


def test_the_place_in_the_data_is_kept_among_other_ranks():
    assert Position(step=9, epoch=1, batch=6).among(2, 3) == Position(9, 1, 4)


def damage(file, kind):
    """Do to a file what disks and killed machines do."""
    whole = bytearray(file.read_bytes())
    if kind == "absent":
        file.unlink()
    elif kind == "bit flipped":
        whole[len(whole) // 2] ^= 1
        file.write_bytes(whole)
    else:
        content = {"cut": whole[:1000], "empty": b"", "foreign": b"hello"}[kind]
        file.write_bytes(content)


DAMAGES = ["cut", "empty", "foreign", "bit flipped"]


@pytest.mark.parametrize("kind", [*DAMAGES, "absent"])
def test_a_damaged_checkpoint_is_named_in_one_line(tmp_path, kind):
    run(tmp_path, 1)
    file = tmp_path / "step-00000001" / "rank-00000.pt"
    damage(file, kind)
    with pytest.raises(InputError) as caught:
        run(tmp_path, 2, resume=True)
    what = "cannot be read: " if kind == "absent" else "is damaged: "
    assert str(caught.value).startswith(f"{file}: {what}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("rank", [0, 1])
def test_the_checkpoint_before_a_damaged_one_is_taken(tmp_path, kind, rank, caplog):
    run_ranks(2, lambda t: run(tmp_path / "a", 3, t))
    file = tmp_path / "a" / "step-00000003" / f"rank-{rank:05d}.pt"
    damage(file, kind)
    resumed = run_ranks(2, lambda t: run(tmp_path / "a", 4, t, resume=True))
    (line,) = caplog.messages
    assert line.startswith(f"{file}: ")
    assert line.endswith(": going on from step-00000002")
    whole = run_ranks(2, lambda t: run(tmp_path / "b", 4, t))
    assert len(resumed[0].iterations_s) == 2
    assert resumed[0].parameters_sha256 == whole[0].parameters_sha256


def test_any_flipped_bit_is_noticed(tmp_path):
    file = tmp_path / "rank-00000.pt"
    assert checkpoint_file.write(file, {"a": torch.arange(3)}) is None
    whole = file.read_bytes()
    for place in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        file.write_bytes(flipped)
        contents, problem = checkpoint_file.read_all(tmp_path, [file.name])
        assert not contents and "is damaged" in problem, place


def test_reading_runs_no_code(tmp_path):
    file = tmp_path / "rank-00000.pt"

    class Malicious:
        def __reduce__(self):
            return (tmp_path / "ran").touch, ()

    with pytest.raises(InputError, match=r"holds .*pathlib.*, which files"):
        checkpoint_file.write(file, {"a": Malicious()})
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    file.with_name("rank-00000.pt.sha256").write_text(f"{sha256}  {file.name}\n")
    contents, problem = checkpoint_file.read_all(tmp_path, [file.name])
    assert not contents and "cannot be read: Weights only load failed" in problem
    assert not (tmp_path / "ran").exists()


def test_what_was_on_a_device_that_is_not_here_is_read(tmp_path, monkeypatch):
    file = tmp_path / "rank-00000.pt"
    with monkeypatch.context() as on_a_device:
        on_a_device.setattr(
            torch.serialization, "location_tag", lambda storage: "cuda:3"
        )
        assert checkpoint_file.write(file, {"a": torch.arange(3)}) is None
    contents, problem = checkpoint_file.read_all(tmp_path, [file.name])
    assert problem is None
    assert contents[file.name]["a"].equal(torch.arange(3))


def test_on_a_full_disk_training_goes_on_with_a_warning(tmp_path, small_disk, caplog):
    """It is full for the checkpoints of steps 1 and 2."""

    @contextmanager
    def room_after_two_steps(engine):
        engine.between_steps(lambda: engine.step == 3 and small_disk())
        yield

    record = run(tmp_path / "a", 4, on_engine=room_after_two_steps)
    assert len(record.iterations_s) == 4
    assert [line.split(":")[0] for line in caplog.messages] == [
        "no checkpoint at step 1", "no checkpoint at step 2"
    ]  # fmt: skip
    assert all(
        "cannot be written: [Errno 27] File too large" in line
        for line in caplog.messages
    )
    assert names(tmp_path / "a") == ["step-00000003", "step-00000004"]


def test_a_disk_that_fills_loses_no_checkpoint(tmp_path, small_disk):
    small_disk()
    run(tmp_path, 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    run(tmp_path, 4, resume=True)
    assert names(tmp_path) == ["step-00000001", "step-00000002"]
    small_disk()
    assert len(run(tmp_path, 4, resume=True).iterations_s) == 2


def test_who_is_late_to_give_a_checkpoint_up_removes_nothing_of_the_next(
    tmp_path, monkeypatch
):
    """The last step has no checkpoint yet when the run ends: it is tried again."""
    write, remove = checkpoint_file.write, shutil.rmtree
    full, late = iter(["the disk is full"]), itertools.count()

    def write_or_fail(path, content):
        problem = next(full, None) if path.name == "rank-00000.pt" else None
        return problem or write(path, content)

    def remove_late(path, **options):
        if next(late) == 1:
            time.sleep(0.5)
        remove(path, **options)

    monkeypatch.setattr(checkpoint_file, "write", write_or_fail)
    monkeypatch.setattr(shutil, "rmtree", remove_late)
    run_ranks(2, lambda transport: run(tmp_path, 1, transport))
    assert names(tmp_path) == ["step-00000001"]
    files = {f"rank-{rank:05d}.pt" for rank in range(2)}
    assert files < set(names(tmp_path / "step-00000001"))


def test_a_new_run_is_kept_apart_from_an_old_one(tmp_path):
    """Else it would resume from the old one's later steps."""
    run(tmp_path, 3)
    with pytest.raises(InputError, match="holds checkpoints of another run"):
        run(tmp_path, 1)
    assert names(tmp_path) == ["step-00000002", "step-00000003"]


def test_a_folder_that_cannot_be_used_is_said_at_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="cannot be made"):
        run(tmp_path / "file" / "below", 1)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may do all
    with pytest.raises(OutputError, match=f"{tmp_path}: cannot be written to"):
        run(tmp_path, 1)


def test_residuals_differ_from_rank_to_rank_and_the_model_is_there_once(tmp_path):
    run_ranks(2, lambda transport: run(tmp_path, 2, transport))
    first, second = (
        torch.load(tmp_path / "step-00000002" / f"rank-{r:05d}.pt", weights_only=True)
        for r in (0, 1)
    )
    assert "model" in first and "model" not in second
    ours, theirs = (
        content["engine"]["ranks"][str(rank)]["0.weight"]["residual"]
        for rank, content in enumerate((first, second))
    )
    assert ours.any() and not torch.equal(ours, theirs)
