"""What ranks remember, and what of it another number of ranks gets."""

import pickle

import pytest
import torch
from torch._subclasses import FakeTensorMode

from comm_plan.plans import ModelTopK, PowerSgd, TopK, Vgc
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.state import EngineState, gathered, share_of
from comm_plan.tests.runtime.trainings import FEATURES, net, plan_for
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport

NAME = "0.weight"


def engine(rank):
    model = net()
    return Engine(model, plan_for(model, 1, PowerSgd(rank=rank)), LocalTransport())


def test_another_number_of_ranks_gets_the_mean_but_of_what_is_equal():
    """A gradient that waits keeps its weight, and its variance goes with its square."""
    numbers, factors = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0])
    ranks = {
        str(rank): {
            NAME: {
                "residual": numbers[rank],
                "velocity": numbers[rank],
                "variance": numbers[rank],
                "factors": factors,
            }
        }
        for rank in range(2)
    }
    for rank in range(4):
        share = share_of(ranks, 2, rank, 4)[NAME]
        assert share["residual"].equal(torch.tensor([2.0, 3.0]))
        assert share["velocity"].equal(torch.tensor([2.0, 3.0]))
        assert share["variance"].equal(torch.tensor([1.0, 1.5]))
        assert share["factors"].equal(factors)


def on_devices(number):
    """Return what ranks remember, each on a CUDA device of its own that is not there.

    As on real devices, what is computed of tensors of two of them is an error.
    """
    with FakeTensorMode():
        return {
            str(rank): {NAME: {"residual": torch.ones(2, device=f"cuda:{rank}")}}
            for rank in range(number)
        }


def test_means_of_several_devices_are_in_main_memory():
    ranks = on_devices(2)
    assert ranks["1"][NAME]["residual"].device == torch.device("cuda", 1)
    share = share_of(ranks, 2, 0, 3)[NAME]["residual"]
    assert share.device == torch.device("cpu")


def test_ranks_gather_what_they_remember_in_main_memory(monkeypatch):
    exchanged = []
    made = engine(rank=1)
    monkeypatch.setattr(made, "remembered", lambda: on_devices(1)["0"])

    def broadcast(ranks, root):
        exchanged.append(ranks)
        return ranks

    monkeypatch.setattr(made.transport, "broadcast_object", broadcast)
    made.gathered_state()
    residual = exchanged[0]["0"][NAME]["residual"]
    assert residual.device == torch.device("cpu")
    made.close()


def test_only_a_rank_that_keeps_them_gets_the_parts_of_the_others():
    def state_of(transport):
        state: EngineState = {
            "step": 3,
            "skipped_steps": 0,
            "world_size": 3,
            "scale": 1.0,
            "of_rounds": False,
            "ranks": {str(transport.rank): {NAME: {"residual": torch.ones(2)}}},
        }
        return gathered(state, transport, keep=transport.rank == 1)

    states = run_ranks(3, state_of)
    held = [sorted(state["ranks"]) for state in states]
    assert held == [["0"], ["0", "1", "2"], ["2"]]
    assert {state["step"] for state in states} == {3}


def test_what_is_gathered_takes_no_more_room_than_it_holds():
    """Residuals of a bucket are parts of one tensor, and so would all be pickled."""
    model = net()
    plan = plan_for(model, 1, ModelTopK(density=0.1), "allgather", 99)
    made = Engine(model, plan, LocalTransport())
    held = [t for each in made.remembered().values() for t in each.values()]
    nbytes = sum(tensor.nbytes for tensor in held)
    assert {tensor.untyped_storage().nbytes() for tensor in held} == {nbytes}
    written = pickle.dumps(made.gathered_state())
    assert len(written) < nbytes + 2000 * len(held)
    parts = pickle.loads(written)["ranks"]["0"].values()
    storages = [t.untyped_storage().nbytes() for each in parts for t in each.values()]
    assert sum(storages) == nbytes
    made.close()


def test_another_rank_takes_the_residuals_over_and_starts_with_its_own_factors():
    before, after, fresh = engine(rank=1), engine(rank=2), engine(rank=2)
    state = before.state_dict()
    state["ranks"]["0"][NAME]["residual"].fill_(7.0)
    after.load_state_dict(state)
    remembered = after.remembered()[NAME]
    assert remembered["residual"].eq(7.0).all()
    assert remembered["factors"].equal(fresh.remembered()[NAME]["factors"])
    for each in (before, after, fresh):
        each.close()


def after_a_step(spec=None, collective="allreduce", momentum=False):
    model = net()
    plan = plan_for(model, 1, spec, collective)
    plan = plan.model_copy(update={"momentum_correction": momentum})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    made = Engine(model, plan, LocalTransport(), optimizer=optimizer)
    model(torch.ones(2, FEATURES)).square().sum().backward()
    return made


def remembered(state):
    return [t for each in state.values() for t in each.values()]


@pytest.mark.parametrize(
    ("spec", "momentum"), [(TopK(density=0.1), True), (Vgc(alpha=1e9), False)]
)
def test_a_state_of_a_dense_plan_leaves_nothing_remembered(spec, momentum):
    dense, sparse = after_a_step(), after_a_step(spec, "allgather", momentum)
    assert all(tensor.any() for tensor in remembered(sparse.remembered()))
    sparse.load_state_dict(dense.state_dict())
    assert not any(tensor.any() for tensor in remembered(sparse.remembered()))
    dense.close()
    sparse.close()


def test_a_residual_that_is_still_to_be_applied_gives_way_to_a_state_without():
    dense, sparse = after_a_step(), after_a_step(TopK(density=0.1), "allgather")
    clean = dense.state_dict()
    dense.load_state_dict(sparse.state_dict())
    assert dense.remembered()
    dense.load_state_dict(clean)
    assert not dense.remembered()
    dense.close()
    sparse.close()


def test_its_own_state_changes_nothing():
    sparse = after_a_step(TopK(density=0.1), "allgather", momentum=True)
    before = [tensor.clone() for tensor in remembered(sparse.remembered())]
    sparse.load_state_dict(sparse.state_dict())
    assert all(map(torch.equal, remembered(sparse.remembered()), before))
    sparse.close()
