"""A plan is swapped between two steps, and nothing of the gradients is lost."""

import copy

import pytest
import torch

from comm_plan.errors import MismatchError
from comm_plan.plans import (
    DoubleSqueeze,
    PartitionTopK,
    Qsgd,
    Replan,
    SparDL,
    TernGrad,
    TopK,
    Vgc,
)
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.record import EngineRecorder
from comm_plan.runtime.second_moments import MicroBatchSecondMoments
from comm_plan.tests.runtime.trainings import FEATURES, net, plan_for, workload
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport

STEPS = 6
KEEP = {
    "topk": (TopK(density=0.1), "allgather"),
    "spardl": (SparDL(density=0.1), "spardl"),
    "partition topk": (PartitionTopK(density=0.1), "allreduce"),
    "doublesqueeze": (DoubleSqueeze(bits=3, group_numel=32), "two_pass"),
}


def replan(step=3):
    return Replan(
        step=step,
        reason="a test",
        plan_sha256="0",
        expected_s=1.0,
        corrected_s=1.0,
        predicted_s=1.0,
    )


def gradients(transport, plans):
    """Return the mean gradients of each step; the plan changes after each of them."""
    training = workload(net(), 2)
    model = training.model
    engine = Engine(model, plan_for(model, 2, *plans[0]), transport)
    seen = []
    batches = training.batches(transport.rank, 2, 0, 0)
    for step, batch in enumerate(batches):
        model.zero_grad()
        training.loss(model, batch).backward()
        seen.append([p.grad.clone() for p in model.parameters()])
        following = plans[(step + 1) % len(plans)]
        engine.swap(plan_for(model, 2, *following), replan(step))
    assert [each.step for each in engine.replans] == list(range(len(seen)))
    engine.close()
    return seen


def check_swapping_changes_nothing(plans):
    """Check that the mean gradients are those of the first plan throughout."""
    (swapped, _) = run_ranks(2, gradients, plans)
    (kept, _) = run_ranks(2, gradients, plans[:1])
    for one, other in zip(swapped, kept, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            assert torch.equal(mine, theirs)


def test_dense_plans_give_the_same_gradients_however_often_they_change():
    check_swapping_changes_nothing([(), ()])


@pytest.mark.parametrize("spec", [TernGrad(), Qsgd()], ids=lambda spec: spec.kind)
def test_a_tensor_in_another_bucket_draws_the_same_random_numbers(spec):
    collective = spec.default_collective()
    check_swapping_changes_nothing([(spec, collective, size) for size in (1, 3, 2)])


@pytest.mark.parametrize("method", KEEP)
def test_what_was_not_sent_goes_with_the_next_dense_plan(method):
    # The model does not move, so what is sent adds up to what the dense plan sends.
    (mixed, _) = run_ranks(2, gradients, [KEEP[method], ()])
    (dense, _) = run_ranks(2, gradients, [()])
    pairs = len(dense) // 2 * 2
    for parameter in range(len(dense[0])):
        sent = sum(step[parameter] for step in mixed[:pairs])
        whole = sum(step[parameter] for step in dense[:pairs])
        torch.testing.assert_close(sent, whole, rtol=1e-4, atol=1e-6)


def test_a_plan_may_change_within_the_step_of_an_optimizer():
    """Where a rank's loss used no parameter, a step ends there, before other hooks."""
    model, other = net(), net()
    plan, next_plan = plan_for(model, 1), plan_for(model, 1, *KEEP["topk"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        Engine(model, plan, LocalTransport(), find_unused_parameters=True) as engine,
        Engine(other, plan, LocalTransport()),
    ):
        engine.between_steps(lambda: engine.swap(next_plan, replan()))
        model(torch.ones(2, FEATURES))
        optimizer.step()
        assert engine.plan == next_plan


@pytest.mark.parametrize("on_nonfinite", ["skip", "propagate"])
def test_what_was_not_sent_outlives_an_overflow_under_the_next_dense_plan(on_nonfinite):
    def rank(transport):
        model = net()
        sparse, dense = plan_for(model, 2, *KEEP["topk"]), plan_for(model, 2)
        with Engine(model, sparse, transport, on_nonfinite=on_nonfinite) as engine:
            x = torch.ones(2, FEATURES) * (1 + transport.rank)
            model(x).square().sum().backward()
            engine.swap(dense, replan())
            waiting = copy.deepcopy(engine.remembered())
            assert any(kept["residual"].any() for kept in waiting.values())
            model.zero_grad()
            (model(x) * (torch.inf if transport.rank else 1.0)).sum().backward()
            assert engine.last_step_skipped
            model.zero_grad()
            (model(x) * 0).sum().backward()
            assert not engine.last_step_skipped
            assert not engine.remembered()
        for name, parameter in model.named_parameters():
            mean = waiting[name]["residual"]
            transport.all_reduce(mean)
            torch.testing.assert_close(parameter.grad.flatten(), mean / 2)

    run_ranks(2, rank)


def test_second_moments_that_a_plan_did_not_want_are_not_the_next_ones():
    model = net()
    moments = MicroBatchSecondMoments(model, 2)
    by_vgc = plan_for(model, 1, Vgc(), "allgather")
    engine = Engine(model, by_vgc, LocalTransport(), second_moments=moments)
    for plan in (plan_for(model, 1), by_vgc, by_vgc):
        model.zero_grad(set_to_none=False)
        with engine.no_sync():
            model(torch.ones(2, FEATURES)).sum().backward()
        model(torch.ones(2, FEATURES)).sum().backward()
        engine.swap(plan, replan())
    engine.close()


def test_a_plan_for_another_model_is_refused():
    model = net()
    engine = Engine(model, plan_for(model, 1), LocalTransport())
    other = torch.nn.Linear(3, 3)
    with pytest.raises(MismatchError):
        engine.swap(plan_for(other, 1), replan())
    engine.close()


def test_a_record_counts_what_buckets_do_under_the_new_plan():
    """The step at whose end the plan changes was made by the one before."""

    def rank(transport):
        model = net()
        dense = plan_for(model, 2)
        sparse = plan_for(model, 2, TopK(density=0.1), "allgather")
        with Engine(model, dense, transport) as engine:
            recorder = EngineRecorder(engine)
            sent = []
            for step in range(5):
                model.zero_grad()
                model(torch.ones(2, FEATURES)).sum().backward()
                if step == 1:
                    engine.swap(sparse, replan())
                recorder.add_step(1.0)
                sent.append(recorder.last_nbytes)
            return recorder.record(transport, workload="net", steps=5), sent

    (record, sent), _ = run_ranks(2, rank)
    assert sent[0] == sent[1] > sent[2] == sent[3] == sent[4] > 0
    assert record.traffic.steps_nbytes == tuple(sent[2:])
    assert record.traffic.message_nbytes == sent[2]
