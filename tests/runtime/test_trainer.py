"""What a run does, and that its record says so."""

import itertools
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from comm_plan.errors import (
    CollectiveError,
    InputError,
    MismatchError,
    NonFiniteError,
)
from comm_plan.plans import LocalSteps, Plan, RunRecord, TopK
from comm_plan.plans.parameters import model_fingerprint
from comm_plan.runtime.density_warmup import GTOPK_WARMUP
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.record import WARMUP_STEPS, parameters_sha256
from comm_plan.runtime.second_moments import MicroBatchSecondMoments
from comm_plan.runtime.trainer import Options, running, train
from comm_plan.tests.runtime.trainings import (
    EPOCH_STEPS,
    METHODS,
    net,
    plan_for,
    workload,
)
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport
from comm_plan.workloads import load
from comm_plan.workloads.data import cross_entropy

NUMELS = [[5, 80], [16, 192]]  # of the two buckets
FIXED_LENGTH = {
    name: method
    for name, method in METHODS.items()
    if method[0].kind not in ("vgc", "strom", "hybrid", "powersgd")
    and name != "terngrad by allreduce"
}


def run(*method, world_size=2, model=None, options=None, **changes):
    """Train on threads; return every rank's record, events and workload."""

    def rank(transport):
        events = []
        chosen = options or Options()
        training = workload(model() if model else None, world_size, **changes)
        plan = plan_for(training.model, world_size, *method)
        options_here = Options(
            **{**vars(chosen), "watcher": lambda event, engine: events.append(event)}
        )
        return train(training, plan, transport, options_here), events, training

    return run_ranks(world_size, rank)


def test_the_record_says_what_was_run():
    results = run(options=Options(seed=3))
    record, events, training = results[0]
    plan = plan_for(net(), 2)
    assert record.workload == "tiny"
    assert record.solver == plan.solver
    assert record.plan_sha256 == plan.sha256
    assert record.model_fingerprint == model_fingerprint(training.model)
    assert (record.backend, record.world_size, record.seed) == ("thread", 2, 3)
    assert len(record.hosts) == 2
    assert record.environment["torch"] == str(torch.__version__)
    assert record.predicted_iteration_s is None
    assert record.final_loss == events[-1].loss
    assert record.parameters_sha256 == parameters_sha256(training.model)
    assert RunRecord.from_json(record.to_json()) == record


def test_ranks_end_with_the_same_parameters_and_the_mean_of_their_times():
    (one, events_one, _), (other, events_other, _) = run()
    assert one.parameters_sha256 == other.parameters_sha256
    assert one.iterations_s == other.iterations_s
    pairs = zip(events_one, events_other, strict=True)
    means = [(a.iteration_s + b.iteration_s) / 2 for a, b in pairs]
    assert list(one.iterations_s) == pytest.approx(means)


def test_the_first_steps_are_left_out_of_the_iteration_time():
    record, _, _ = run()[0]
    warm = record.iterations_s[WARMUP_STEPS:]
    assert len(record.iterations_s) == record.steps == 2 * EPOCH_STEPS
    assert record.iteration.count == len(warm) == 2 * EPOCH_STEPS - WARMUP_STEPS
    assert record.iteration.median_s == np.median(warm)
    assert record.iteration.min_s == min(warm)
    assert record.iteration.min_s <= record.iteration.p95_s <= max(warm)


@pytest.mark.parametrize(
    ("given", "steps", "epochs"),
    [
        ({}, 2 * EPOCH_STEPS, 2),  # the workload's own number of epochs
        ({"epochs": 1}, EPOCH_STEPS, 1),
        ({"epochs": 3}, 3 * EPOCH_STEPS, 3),
        ({"steps": 2}, 2, 1),
        ({"steps": EPOCH_STEPS}, EPOCH_STEPS, 1),
        ({"steps": 3 * EPOCH_STEPS + 1}, 3 * EPOCH_STEPS + 1, 4),  # beyond its epochs
        ({"steps": 7, "epochs": 1}, EPOCH_STEPS, 1),  # whichever comes first
        ({"steps": 7, "epochs": 3}, 7, 2),
        ({"steps": 0}, 0, 0),
    ],
)
def test_steps_and_epochs_end_a_run(given, steps, epochs):
    training = workload(world_size=1, evaluate=lambda model: ("accuracy", 0.5))
    plan = plan_for(training.model, 1)
    record = train(training, plan, LocalTransport(), Options(**given))
    assert record.steps == steps
    assert len(record.iterations_s) == steps
    assert [e.epoch for e in record.evaluations] == list(range(epochs))
    at = [min(EPOCH_STEPS * (epoch + 1), steps) for epoch in range(epochs)]
    assert [e.step for e in record.evaluations] == at
    if steps == 0:
        assert record.iteration.count == 0
        assert record.traffic is None
        assert record.final_loss is None


@pytest.mark.parametrize("name", FIXED_LENGTH)
def test_traffic_is_what_the_plan_promises(name):
    spec, collective = METHODS[name]
    record, events, _ = run(spec, collective)[0]
    promised = [spec.message_nbytes(numels, collective) for numels in NUMELS]
    dense = [4 * sum(numels) for numels in NUMELS]
    traffic = record.traffic
    assert [bucket.message_nbytes for bucket in traffic.buckets] == promised
    assert [bucket.dense_nbytes for bucket in traffic.buckets] == dense
    assert {(b.kind, b.collective) for b in traffic.buckets} == {
        (spec.kind, collective)
    }
    assert traffic.message_nbytes == sum(promised)
    assert traffic.dense_nbytes == sum(dense)
    assert traffic.compression_ratio == sum(dense) / sum(promised)
    assert {event.message_nbytes for event in events} == {sum(promised)}


def test_one_rank_sends_nothing():
    record, events, _ = run(world_size=1)[0]
    assert record.traffic.dense_nbytes == 4 * sum(map(sum, NUMELS))
    assert (record.traffic.message_nbytes, set(record.traffic.steps_nbytes)) == (0, {0})
    assert {event.message_nbytes for event in events} == {0}


def test_trits_that_are_summed_travel_as_bytes():
    record, _, _ = run(*METHODS["terngrad by allreduce"])[0]
    traffic = record.traffic
    assert [b.message_nbytes for b in traffic.buckets] == [sum(n) for n in NUMELS]
    assert traffic.compression_ratio == 4


@pytest.mark.parametrize("name", ["vgc", "strom", "hybrid", "powersgd"])
def test_traffic_of_unequal_messages_is_their_mean(name):
    record, events, _ = run(*METHODS[name])[0]
    mean = np.mean([event.message_nbytes for event in events])
    assert record.traffic.message_nbytes == pytest.approx(mean)
    assert record.traffic.steps_nbytes == tuple(e.message_nbytes for e in events)
    assert len({event.message_nbytes for event in events}) > 1


def test_density_warmup_is_by_epoch():
    spec = TopK(density=0.01)
    _, events, _ = run(
        spec, "allgather", options=Options(epochs=5, density_warmup=GTOPK_WARMUP)
    )[0]
    sent = {event.epoch: event.message_nbytes for event in events}
    floors = [*GTOPK_WARMUP, 0.0]
    assert {e.epoch: e.density_floor for e in events} == dict(enumerate(floors))
    for epoch, floor in enumerate(floors):
        now = TopK(density=max(floor, spec.density))
        assert sent[epoch] == sum(
            now.message_nbytes(numels, "allgather") for numels in NUMELS
        )


def test_who_waits_too_long_for_an_evaluation_is_told_so(monkeypatch):
    training = workload(world_size=1)
    plan = plan_for(training.model, 1)

    def barrier():
        raise CollectiveError("barrier failed: timed out")

    with running(training, plan, LocalTransport(), Options(epochs=1)) as run:
        monkeypatch.setattr(run.transport, "barrier", barrier)
        monkeypatch.setattr(run.transport, "rank", 1)
        with pytest.raises(CollectiveError, match=r"from evaluating .* --timeout, or"):
            list(run.epochs())


def test_evaluation_leaves_the_training_alone():
    """It may draw random numbers and is told the mode; rank 0 alone does it."""
    modes = []

    def evaluate(model):
        modes.append(model.training)
        torch.rand(3)
        np.random.rand(3)

    def outcome(**changes):
        torch.manual_seed(0)
        training = workload(net(torch.nn.Dropout(0.5)), 1, **changes)
        plan = plan_for(training.model, 1)
        record = train(training, plan, LocalTransport(), Options())
        assert record.evaluations == ()
        return record.parameters_sha256

    assert outcome(evaluate=evaluate) == outcome()
    assert modes == [False, False]


@pytest.mark.parametrize("pretrained", [False, True])
def test_what_a_user_has_frozen_stays_so_unless_it_is_the_whole_model(pretrained):
    seen = []

    class Noting(nn.BatchNorm1d):
        def forward(self, x):
            seen.append(self.training)
            return super().forward(x)

    model = nn.Sequential(net(), Noting(5))
    (model if pretrained else model[1]).eval()
    training = workload(model, 1, evaluate=lambda model: ("loss", 1.0))
    options = Options(epochs=2)
    train(training, plan_for(model, 1), LocalTransport(), options)
    assert len(seen) >= 2 * EPOCH_STEPS
    assert set(seen) == {pretrained}


def test_the_seed_decides_everything_random():
    def outcome(seed):
        training = workload(net(torch.nn.Dropout(0.5)), 1)
        plan = plan_for(training.model, 1, *METHODS["terngrad by allgather"])
        options = Options(seed=seed)
        return train(training, plan, LocalTransport(), options).parameters_sha256

    assert outcome(1) == outcome(1) != outcome(2)


def poisoned(step):
    """Return a loss that is NaN at ``step`` for models that are ``poisoned``."""
    counts = {}

    def loss(model, batch):
        number = counts[model] = counts.get(model, -1) + 1
        poison = torch.nan if number == step and model.poisoned else 1.0
        return cross_entropy(model, batch) * poison

    return loss


@pytest.mark.parametrize(
    "name",
    [
        *("dense", "topk", "gtopk", "spardl", "partition topk", "vgc", "qsgd 4"),
        "doublesqueeze",
    ],
)
def test_a_step_with_nan_is_skipped_on_all_ranks_and_counted(name):
    def rank(transport):
        training = workload(loss=poisoned(2))
        training.model.poisoned = transport.rank == 1
        skipped = []
        options = Options(
            on_nonfinite="skip",
            watcher=lambda event, engine: skipped.append(engine.last_step_skipped),
        )
        plan = plan_for(training.model, 2, *METHODS[name])
        return train(training, plan, transport, options), skipped, training

    for record, skipped, training in run_ranks(2, rank):
        assert record.skipped_steps == 1
        assert skipped == [step == 2 for step in range(2 * EPOCH_STEPS)]
        assert all(p.isfinite().all() for p in training.model.parameters())
        assert record.steps == 2 * EPOCH_STEPS


def test_a_round_that_was_undone_is_told_once_and_by_its_own_number(caplog):
    training = workload(net(), 1, loss=poisoned(1))
    training.model.poisoned = True
    plan = plan_for(training.model, 1).model_copy(
        update={"local_steps": LocalSteps(every=3)}
    )
    options = Options(steps=9, on_nonfinite="skip")
    train(training, plan, LocalTransport(), options)
    (told,) = (r.getMessage() for r in caplog.records if "NaN" in r.getMessage())
    assert told.startswith("round 0: ")
    assert "is undone on all ranks" in told


def test_skipped_steps_are_counted_over_a_resume(tmp_path):
    def run(steps, resume, loss):
        training = workload(net(), 1, loss=loss)
        training.model.poisoned = True
        plan = plan_for(training.model, 1, *METHODS["topk"])
        options = Options(
            steps=steps, on_nonfinite="skip", checkpoint=tmp_path, resume=resume
        )
        return train(training, plan, LocalTransport(), options)

    assert run(3, False, poisoned(1)).skipped_steps == 1
    assert run(6, True, poisoned(2)).skipped_steps == 2


def test_a_diverged_run_still_leaves_a_record():
    """JSON has neither NaN nor inf: such figures are left out."""
    training = workload(
        net(), 1, loss=poisoned(2), evaluate=lambda model: ("loss", torch.inf)
    )
    training.model.poisoned = True
    plan = plan_for(training.model, 1)
    options = Options(steps=3, on_nonfinite="skip")
    record = train(training, plan, LocalTransport(), options)
    assert record.final_loss is None
    assert record.evaluations == ()
    assert record.steps == 3
    assert RunRecord.from_json(record.to_json()) == record


def test_a_step_with_nan_stops_the_run_and_names_the_rank():
    def rank(transport):
        training = workload(loss=poisoned(2))
        training.model.poisoned = transport.rank == 1
        plan = plan_for(training.model, 2, *METHODS["topk"])
        with pytest.raises(NonFiniteError) as caught:
            train(training, plan, transport, Options())
        return str(caught.value)

    for message in run_ranks(2, rank):
        assert message.startswith("step 2: rank 1 had inf or NaN gradients")


def normed():
    """A workload with batch norm, which has no exact second moments."""
    model = net(nn.BatchNorm1d(16))
    return workload(model, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))


@pytest.mark.parametrize(("asked", "parts"), [(None, 2), (2, 2)])
def test_vgc_of_batch_norm_is_a_loop_over_micro_batches(asked, parts, caplog):
    def by_the_trainer(transport):
        training = normed()
        plan = plan_for(training.model, 2, *METHODS["vgc"])
        options = Options(steps=3, micro_batches=asked)
        record = train(training, plan, transport, options)
        assert record.micro_batches == parts
        return training.model

    def by_hand(transport):
        training = normed()
        model = training.model
        optimizer = training.optimizer(model.parameters())
        moments = MicroBatchSecondMoments(model, parts)
        plan = plan_for(model, 2, *METHODS["vgc"])
        engine = Engine(model, plan, transport, second_moments=moments)
        batches = training.batches(transport.rank, 2, 0, 0)
        for inputs, labels in itertools.islice(batches, 3):
            optimizer.zero_grad()
            pairs = zip(inputs.chunk(parts), labels.chunk(parts), strict=True)
            for number, batch in enumerate(pairs, start=1):
                with nullcontext() if number == parts else engine.no_sync():
                    (cross_entropy(model, batch) / parts).backward()
            optimizer.step()
        engine.close()
        return model

    theirs = run_ranks(2, by_hand)
    for ours in run_ranks(2, by_the_trainer):
        assert parameters_sha256(ours) == parameters_sha256(theirs[0])
    said = "second moments from 2 micro-batches: layer 1 (batch normalisation) mixes"
    assert [said in record.message for record in caplog.records] == [True] * (not asked)


def test_exact_second_moments_are_taken_where_they_can_be_had(caplog):
    training = workload(world_size=1)
    plan = plan_for(training.model, 1, *METHODS["vgc"])
    with running(training, plan, LocalTransport(), Options()) as begun:
        assert begun.parts == 1
    assert not caplog.records


def test_what_cannot_be_had_is_refused_before_the_first_step():
    training = normed()
    plan = plan_for(training.model, 1, *METHODS["vgc"])
    exact = Options(micro_batches=1)
    with pytest.raises(MismatchError, match=r"layer 1 .*--second-moments micro"):
        train(training, plan, LocalTransport(), exact)
    dense = plan_for(training.model, 1)
    with pytest.raises(InputError, match="leave --second-moments out"):
        train(training, dense, LocalTransport(), exact)


OWN = """
import torch
from torch import nn

def make():
    def data(rank, world_size, epoch, seed):
        for step in range(6):
            poison = torch.nan if (rank, step) == (1, 2) else 1.0
            yield torch.ones(3, 4) * poison, torch.zeros(3, dtype=torch.long)
    return nn.Linear(4, 2), data, nn.CrossEntropyLoss()
"""


@pytest.mark.slow
def test_the_command_stops_at_nan_with_one_line_a_rank(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    model = load(f"{file}:make").model
    plan: Plan = plan_for(model, 2, TopK(density=0.5), "allgather")
    plan.save(tmp_path / "plan.json")
    done = subprocess.run(
        [sys.executable, "-m", "comm_plan.cli", "train", "own.py:make",
         "--plan", "plan.json", "--local-ranks", "2", "--epochs", "1"],
        cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    for rank in (0, 1):
        (mine,) = [line for line in errors if f"error: rank {rank}:" in line]
        assert "rank 1" in mine.removeprefix(f"comm-plan: error: rank {rank}:")
        assert "inf or NaN" in mine
    assert len(errors) == 2
    assert "Traceback" not in done.stderr
    assert not Path(tmp_path / "run.json").exists()
