"""When what happens in a step, from the moments that were marked."""

import itertools

import pytest
import torch

from comm_plan.plans import LocalSteps, Vgc
from comm_plan.runtime import timing
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.second_moments.micro_batches import MicroBatchSecondMoments
from comm_plan.runtime.timing import Moments
from comm_plan.tests.profiler.test_round_trip import FakeTime
from comm_plan.tests.runtime.trainings import FEATURES, net, plan_for
from comm_plan.transports.local import LocalTransport

CPU = torch.device("cpu")


def marked(finish, *, begun=0.0):
    moments = Moments(CPU, len(finish))
    moments.begun, moments.backward, moments.backward_end = begun, 1.0, 4.0
    moments.ready = moments.start = [2.0] * len(finish)
    moments.finish = list(finish)
    return moments


def test_seconds_are_from_the_beginning_of_forward():
    told = marked([5.0], begun=0.5).seconds()
    assert told.tolist() == [0.5, 3.5, 1.5, 1.5, 4.5]


@pytest.mark.parametrize(
    ("finish", "exposed_s"), [([3.0, 7.0], 3.0), ([3.0], 0.0), ([3.0, None], None)]
)
def test_what_is_later_than_backward_is_exposed(finish, exposed_s):
    assert marked(finish, begun=None).exposed_s() == exposed_s


def test_what_was_never_reached_has_no_seconds():
    assert marked([None]).seconds() is None
    assert marked([5.0], begun=None).seconds() is None
    assert Moments(CPU, 1).exposed_s() is None


@pytest.fixture
def ticks(monkeypatch):
    """A clock that counts how often it was asked."""
    count = itertools.count()
    monkeypatch.setattr(timing, "clock", lambda device: lambda: float(next(count)))


def test_a_step_begins_with_its_first_forward_also_one_that_only_accumulates(ticks):
    model = net()
    with Engine(model, plan_for(model, 1), LocalTransport()) as engine:
        with engine.no_sync():
            loss_of(model).backward()
        loss_of(model) + loss_of(model)
        loss_of(model).backward()
        assert engine.last_moments.begun == 0


def test_a_forward_that_failed_is_none_of_the_step(ticks):
    model = net()
    with Engine(model, plan_for(model, 1), LocalTransport()) as engine:
        with pytest.raises(RuntimeError):
            model(torch.ones(2, FEATURES + 1))
        loss_of(model).backward()
        assert engine.last_moments.begun == 1


def test_a_step_by_parts_of_a_batch_has_no_time_of_its_computation():
    model = net()
    plan = plan_for(model, 1, Vgc(), "allgather")
    moments = MicroBatchSecondMoments(model, 2)
    with Engine(model, plan, LocalTransport(), second_moments=moments) as engine:
        assert engine.cuts_batches
        with engine.no_sync():
            loss_of(model).backward()
        loss_of(model).backward()
        assert engine.last_moments.seconds() is None
        assert engine.last_moments.busy_s() is not None


def loss_of(model):
    return model(torch.ones(2, FEATURES)).square().mean()


@pytest.mark.parametrize("begun", [0.5, None])
def test_a_bucket_is_busy_from_its_start_to_its_finish(begun):
    moments = marked([5.0, 7.5], begun=begun)
    moments.start[:] = [2.0, 6.0]
    assert moments.busy_s().tolist() == [3.0, 1.5]


def test_a_bucket_that_never_started_or_finished_was_not_busy():
    assert marked([None]).busy_s() is None
    moments = marked([5.0])
    moments.start[:] = [None]
    assert moments.busy_s() is None


def test_a_round_leaves_out_what_lies_between_its_steps(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr(timing, "time", fake)
    model = net()
    plan = plan_for(model, 1).model_copy(update={"local_steps": LocalSteps(every=3)})
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with Engine(model, plan, LocalTransport(), optimizer=optimizer) as engine:
        for _ in range(6):
            fake.sleep(100.0)  # the data, say
            optimizer.zero_grad()
            loss = loss_of(model)
            fake.sleep(1.0)
            loss.backward()
            optimizer.step()
        assert engine.step == 2
        assert set(engine.last_moments.seconds()) == {3.0}
