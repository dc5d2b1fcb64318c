"""Side by side, every plan trains as it would alone."""

import pytest
from torch import nn

from comm_plan.errors import InputError
from comm_plan.plans import TopK
from comm_plan.runtime import side_by_side
from comm_plan.runtime.side_by_side import train_side_by_side
from comm_plan.runtime.trainer import Options, train
from comm_plan.tests.runtime.trainings import EPOCH_STEPS, net, plan_for, workload
from comm_plan.tests.support.harness import run_ranks

DENSE = ()
SPARSE = (TopK(density=0.1), "allgather")


def trained(methods, world_size, dropout=0.0):
    """Return the records of runs alone and of the same runs together, of rank 0."""
    options = Options(epochs=3, seed=5)

    def prepare():
        training = workload(net(nn.Dropout(dropout)), world_size)
        plans = [plan_for(training.model, world_size, *method) for method in methods]
        return training, plans

    def alone(transport, number):
        training, plans = prepare()
        return train(training, plans[number], transport, options)

    def together(transport):
        return train_side_by_side(*prepare(), transport, options)

    each = [run_ranks(world_size, alone, n)[0] for n in range(len(methods))]
    return each, run_ranks(world_size, together)[0]


def same(records, others):
    for record, other in zip(records, others, strict=True):
        assert record.parameters_sha256 == other.parameters_sha256
        assert record.losses == other.losses
        assert record.plan_sha256 == other.plan_sha256


@pytest.fixture(params=[1, 2 * EPOCH_STEPS], ids=["an epoch each", "two each"])
def turns(request, monkeypatch):
    """Turns that end within the training, so that plans really alternate."""
    monkeypatch.setattr(side_by_side, "TURN_STEPS", request.param)


@pytest.mark.usefixtures("turns")
@pytest.mark.parametrize("methods", [(DENSE, SPARSE), (SPARSE, DENSE, SPARSE)])
def test_every_plan_trains_as_it_would_alone(methods):
    same(*trained(methods, 2))


@pytest.mark.usefixtures("turns")
def test_every_plan_has_its_own_random_numbers():
    # The ranks of these tests are threads and share a process's random numbers.
    same(*trained((DENSE, DENSE), 1, dropout=0.3))


def test_checkpoints_are_refused(tmp_path):
    def rank(transport):
        training = workload()
        plan = plan_for(training.model, 2)
        options = Options(checkpoint=tmp_path)
        return train_side_by_side(training, [plan, plan], transport, options)

    with pytest.raises(InputError, match="one by one"):
        run_ranks(2, rank)
