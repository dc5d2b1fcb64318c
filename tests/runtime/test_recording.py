"""The record of a loop that is not comm-plan's: steps, times, bytes, what it told."""

from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import comm_plan
from comm_plan.errors import InputError
from comm_plan.plans import (
    EmulatedLink,
    LocalSteps,
    Plan,
    Predicted,
    RunRecord,
    TopK,
)
from comm_plan.plans.run import STOCK_DDP
from comm_plan.report.tables import tables
from comm_plan.runtime import recording
from comm_plan.runtime.record import EngineRecorder, Recorder, _interface_tx_nbytes
from comm_plan.tests.profiler.test_round_trip import FakeTime
from comm_plan.tests.runtime.trainings import FEATURES, net, plan_for
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport

RANKS, STEPS = 2, 8
PAUSE_S = 0.25


@dataclass
class Training:
    """A model with its optimizers, which take turns within each step."""

    model: torch.nn.Module
    optimizers: list[torch.optim.Optimizer]

    def step(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = self.model(torch.ones(4, FEATURES)).square().mean()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.item()


def training(model):
    return Training(model, [torch.optim.SGD(model.parameters(), 0.01)])


@contextmanager
def alone():
    """Lend an engine of one rank, and a training of its model."""
    model = net()
    with comm_plan.parallelize(model, plan_for(model, 1)) as engine:
        yield engine, training(model)


def in_own_loop(plan, output=None, ranks=RANKS):
    """Return the record of each rank's loop."""

    def rank(transport):
        model = net()
        own = training(model)
        engine = comm_plan.parallelize(
            model, plan, transport=transport, optimizer=own.optimizers[0]
        )
        with comm_plan.record(engine, output, name="mine") as run:
            for _ in range(STEPS):
                run.loss(own.step())
            run.evaluated("accuracy", 0.5 + transport.rank)
        engine.close()
        return run.record

    return run_ranks(ranks, rank)


def test_an_evaluation_that_diverged_is_left_out():
    with alone() as (engine, own):
        with comm_plan.record(engine) as run:
            own.step()
            run.evaluated("perplexity", torch.inf)
            run.evaluated("loss", torch.nan)
            run.evaluated("accuracy", 0.5)
        assert [each.metric for each in run.record.evaluations] == ["accuracy"]


def test_the_record_is_of_the_planned_model_though_a_layer_is_frozen_at_the_end():
    with alone() as (engine, own):
        with comm_plan.record(engine) as run:
            own.step()
            next(own.model.parameters()).requires_grad_(False)
        assert run.record.model_fingerprint == engine.plan.model.fingerprint


def test_what_was_predicted_for_another_link_is_not_held_against_a_run():
    model, link = net(), EmulatedLink.parse("100mbit")
    predicted = Predicted(iteration_s=1.0, exposed_s=0.0, lower_bound_s=0.0)
    plan = plan_for(model, 1).model_copy(update={"predicted": predicted})
    for planned, expected_s in ((plan, 1.0), (of_link(plan, link), None)):
        with (
            comm_plan.parallelize(model, planned) as engine,
            comm_plan.record(engine) as run,
        ):
            training(model).step()
        assert run.record.predicted_iteration_s == expected_s


def of_link(plan, link):
    return plan.model_copy(update={"emulated_link": link})


def test_steps_that_make_no_round_are_no_iteration():
    model = net()
    plan = plan_for(model, 1).model_copy(update={"local_steps": LocalSteps(every=9)})
    own = training(model)
    with (
        comm_plan.parallelize(model, plan, optimizer=own.optimizers[0]) as engine,
        comm_plan.record(engine) as run,
    ):
        for _ in range(STEPS):
            own.step()
    assert (run.record.steps, run.record.iteration.count) == (STEPS, 0)


def test_a_loop_is_recorded_as_a_run_by_the_plan(tmp_path):
    path, plan = (
        tmp_path / "run.json",
        plan_for(net(), RANKS, TopK(density=0.1), "allgather"),
    )
    record, other = in_own_loop(plan, path)
    assert RunRecord.load(path) == record
    assert record.iterations_s == other.iterations_s
    assert record.workload == "mine"
    assert (record.solver, record.plan_sha256) == (plan.solver, plan.sha256)
    assert (record.steps, len(record.iterations_s)) == (STEPS, STEPS)
    assert len(record.losses) == STEPS
    assert record.losses[-1] == record.final_loss < record.losses[0]
    (found,) = record.evaluations
    assert (found.metric, found.value, found.step) == ("accuracy", 0.5, STEPS)
    assert record.traffic.message_nbytes < record.traffic.dense_nbytes
    assert len(record.timing.buckets) == len(plan.buckets)
    assert record.seed is None


def test_moments_are_kept_of_the_last_steps_only(monkeypatch):
    """A long run would fill the memory with those of all buckets."""
    monkeypatch.setattr("comm_plan.runtime.record.LAST_STEPS", 5)
    with alone() as (engine, own):
        recorder = EngineRecorder(engine)
        for _ in range(STEPS):
            own.step()
            recorder.add_step(1.0)
        found = recorder.record(engine.transport, workload="mine", steps=STEPS)
    assert len(recorder._step_seconds) == 5
    assert len(found.timing.buckets) == len(engine.buckets)
    assert len(found.traffic.steps_nbytes) == found.iteration.count + 3 == STEPS


def test_what_ddp_took_is_recorded_too(one_rank_group, tmp_path):
    model = DistributedDataParallel(net())
    own = training(model)
    with comm_plan.record(model, tmp_path / "run-ddp.json") as run:
        for _ in range(STEPS):
            own.step()
    record = RunRecord.load(tmp_path / "run-ddp.json")
    assert record == run.record
    assert (record.solver, record.plan_sha256) == (STOCK_DDP, None)
    assert (record.workload, record.losses) == (type(model.module).__name__, ())
    assert record.iteration.count == STEPS - 3
    assert record.traffic is None
    assert record.interface_tx_nbytes >= 0
    (table,) = tables(record)
    assert "averaged by PyTorch DDP on 1 x gloo" in table.columns[1]._cells


def test_the_ranks_of_ddp_talk_where_its_model_is(one_rank_group, monkeypatch):
    """Not on the current GPU, which is rank 0's on all ranks if nobody sets it."""
    asked = []

    def transport(*, device):
        asked.append(device)
        return LocalTransport(device)

    monkeypatch.setattr(recording, "current_transport", transport)
    model = DistributedDataParallel(net())
    comm_plan.record(model)
    assert asked == [torch.device("cpu")]


def test_the_ranks_of_ddp_are_those_of_its_own_group(one_rank_group):
    group = dist.new_group([0])
    model = DistributedDataParallel(net(), process_group=group)
    assert comm_plan.record(model)._ranks.process_group is group


def test_an_interface_that_goes_while_it_is_read_is_left_out(monkeypatch, tmp_path):
    for name in ("eth0", "gone"):
        (tmp_path / name / "statistics").mkdir(parents=True)
    (tmp_path / "eth0" / "statistics" / "tx_bytes").write_text("5")
    (tmp_path / "gone" / "statistics" / "tx_bytes").mkdir()  # which cannot be read
    monkeypatch.setattr("comm_plan.runtime.record.INTERFACES", tmp_path)
    assert _interface_tx_nbytes() == 5


@pytest.fixture
def clock(monkeypatch):
    """A clock that only sleeping moves."""
    fake = FakeTime()
    monkeypatch.setattr(recording, "time", fake)
    return fake


def test_an_evaluation_is_no_iteration(clock):
    with alone() as (engine, own), comm_plan.record(engine) as run:
        for _ in range(STEPS):
            own.step()
            clock.sleep(PAUSE_S)
            run.evaluated("accuracy", 0.5)
    assert run.record.iterations_s == (0.0,) * STEPS
    assert [found.step for found in run.record.evaluations] == [*range(1, STEPS + 1)]


def test_an_iteration_is_all_that_passes_between_two_steps(clock):
    with alone() as (engine, own), comm_plan.record(engine) as run:
        for step in range(STEPS):
            if step == 4:
                clock.sleep(PAUSE_S)  # the data, say
            own.step()
    assert run.record.iterations_s == (0.0,) * 4 + (PAUSE_S,) + (0.0,) * 3


def test_of_several_optimizers_one_ends_the_step_and_others_models_do_not_count():
    model, another = net(), net()
    first, *rest = model.parameters()
    own = training(model)
    own.optimizers = [torch.optim.SGD([first], 0.01), torch.optim.SGD(rest, 0.01)]
    engine = comm_plan.parallelize(model, plan_for(model, 1))
    with comm_plan.record(engine) as run:
        for _ in range(STEPS):
            training(another).step()
            own.step()
    engine.close()
    assert len(run.record.iterations_s) == STEPS


def test_of_local_steps_an_iteration_is_the_mean_of_a_round():
    plan = plan_for(net(), RANKS)
    content = plan.model_dump(mode="json", by_alias=True)
    local = LocalSteps(every=4).model_dump(mode="json")
    record, _ = in_own_loop(Plan.model_validate({**content, "local_steps": local}))
    assert len(record.iterations_s) == STEPS
    assert record.round_steps == 4
    dense = record.traffic.dense_nbytes
    assert record.traffic.steps_nbytes == (0, 0, 0, dense, 0, 0, 0, dense)


def test_of_ranks_that_made_more_steps_the_first_ones_count():
    def rank(transport):
        recorder = Recorder(net())
        for step in range(3 + transport.rank):
            recorder.add_step(float(step + 10 * transport.rank))
            recorder.add_loss(float(step))
        return recorder.record(transport, workload="mine", steps=recorder.steps)

    for record in run_ranks(RANKS, rank):
        assert record.iterations_s == (5.0, 6.0, 7.0)
        assert record.losses == (0.0, 1.0, 2.0)


def test_a_loop_that_is_longer_on_a_rank_has_the_steps_of_all():
    """Else its losses would be taken for those of a run that was resumed."""

    def rank(transport):
        model = net()
        own = training(model)
        plan = plan_for(model, RANKS)
        with (
            comm_plan.parallelize(model, plan, transport=transport) as engine,
            comm_plan.record(engine) as run,
        ):
            for _ in range(STEPS):
                run.loss(own.step())
            if transport.rank == 0:  # which the others shadow, in a block of Join
                run._recorder.add_step(1.0)
        return run.record

    for record in run_ranks(RANKS, rank):
        assert record.steps == len(record.iterations_s) == STEPS
        assert len(record.losses) == len(record.traffic.steps_nbytes) == STEPS


def test_a_block_that_fails_writes_nothing_and_leaves_no_hook(tmp_path):
    path = tmp_path / "run.json"
    with alone() as (engine, own):
        with (
            pytest.raises(ZeroDivisionError),
            comm_plan.record(engine, path) as run,
        ):
            own.step()
            own.step()
            raise ZeroDivisionError
        assert not path.exists()
        own.step()
        assert run._recorder.steps == 2


def test_a_block_without_training_is_refused():
    with (
        alone() as (engine, _),
        pytest.raises(InputError, match="no optimizer has updated the model"),
        comm_plan.record(engine) as run,
    ):
        run.loss(1.0)  # of no step yet


def test_what_averages_nothing_is_refused():
    with pytest.raises(InputError, match="Sequential averages no gradients"):
        comm_plan.record(net())


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(tmp_path):
    with alone() as (engine, _), pytest.raises(InputError, match="absent"):
        comm_plan.record(engine, tmp_path / "absent" / "run.json")


def test_the_file_is_where_it_was_named_though_the_loop_goes_elsewhere(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with alone() as (engine, own), comm_plan.record(engine, "run.json") as run:
        own.step()
        own.step()
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir("elsewhere")
    assert RunRecord.load(tmp_path / "run.json") == run.record
