"""Rounds of local steps: what all ranks do by definition, and what is refused."""

from __future__ import annotations

import itertools
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn
from torch.distributed.algorithms.join import Join

from comm_plan import parallelize
from comm_plan.errors import InputError, NonFiniteError, RunError
from comm_plan.plans import (
    DoubleSqueeze,
    LocalSteps,
    Plan,
    TopK,
    Vgc,
)
from comm_plan.plans.compression import OUTER_MOMENTUM
from comm_plan.plans.compression.rows import Rows
from comm_plan.runtime.rounds import Rounds
from comm_plan.runtime.trainer import Options, train
from comm_plan.tests.runtime.test_swap import replan
from comm_plan.tests.runtime.trainings import (
    FEATURES,
    Killed,
    dying,
    net,
    plan_for,
    workload,
)
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport

RANKS = 3
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.AdamW(p, lr=0.01),
}
OUTER = {"mean": {}, "diloco": {"learning_rate": 0.7, "momentum": 0.9}}


def in_rounds(model, ranks, every=3, spec=None, collective="allreduce", **outer):
    plan = plan_for(model, ranks, spec, collective)
    content = plan.model_dump(mode="json", by_alias=True)
    local = LocalSteps(every=every, **outer).model_dump(mode="json")
    return Plan.model_validate({**content, "local_steps": local})


def loss(model, rank, step):
    generator = torch.Generator().manual_seed(100 * rank + step)
    return model(torch.randn(5, FEATURES, generator=generator)).square().mean()


def step_alone(model, optimizer, rank, step):
    optimizer.zero_grad()
    loss(model, rank, step).backward()
    optimizer.step()


def parameters(model):
    return [p.detach().clone() for p in model.parameters()]


def by_definition(make, every, steps, outer):
    """Return the parameters of every rank after every step; the last ends a round."""
    common = net()
    ranks = [net() for _ in range(RANKS)]
    optimizers = [make(model.parameters()) for model in ranks]
    momentum = outer.get("momentum", 0.0)
    away = torch.optim.SGD(
        common.parameters(),
        lr=outer.get("learning_rate", 1.0),
        momentum=momentum,
        nesterov=momentum > 0,
    )
    seen = []
    for step in range(steps):
        for rank, (model, optimizer) in enumerate(zip(ranks, optimizers, strict=True)):
            step_alone(model, optimizer, rank, step)
        if (step + 1) % every == 0 or step + 1 == steps:
            every_rank = (m.parameters() for m in ranks)
            each = zip(common.parameters(), *every_rank, strict=True)
            for begin, *now in each:
                begin.grad = begin.detach() - torch.stack(now).mean(0).detach()
            away.step()
            for model in ranks:
                model.load_state_dict(common.state_dict())
        seen.append([parameters(model) for model in ranks])
    return seen


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("every", [2, 3, 10])
def test_every_step_is_what_the_definition_says(every, outer, optimizer):
    steps, make = 8, OPTIMIZERS[optimizer]

    def rank(transport):
        model = net()
        own = make(model.parameters())
        plan = in_rounds(model, RANKS, every, **OUTER[outer])
        engine = parallelize(model, plan, transport=transport, optimizer=own)
        seen = []
        for step in range(steps):
            step_alone(model, own, transport.rank, step)
            seen.append(parameters(model))
        engine.synchronise()
        seen[-1] = parameters(model)
        assert engine.step == -(-steps // every)
        engine.close()
        return seen

    expected = by_definition(make, every, steps, OUTER[outer])
    for number, found in enumerate(run_ranks(RANKS, rank)):
        for step, of_step in enumerate(found):
            if step < steps - 1:  # the last is compared after the round's end
                torch.testing.assert_close(of_step, expected[step][number])
        torch.testing.assert_close(found[-1], expected[-1][number])


def test_gradients_stay_the_ranks_own():
    def rank(transport):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        plan = in_rounds(model, RANKS, 2)
        with parallelize(model, plan, transport=transport, optimizer=optimizer):
            for step in range(2):
                before = deepcopy(model)
                step_alone(model, optimizer, transport.rank, step)
                loss(before, transport.rank, step).backward()
                for p, q in zip(model.parameters(), before.parameters(), strict=True):
                    torch.testing.assert_close(p.grad, q.grad)

    run_ranks(RANKS, rank)


@settings(max_examples=15, deadline=None)
@given(
    every=st.integers(2, 4),
    rounds=st.integers(1, 4),
    ranks=st.integers(1, 4),
    spec=st.sampled_from(
        [(TopK(density=0.1), "allgather"), (DoubleSqueeze(group_numel=32), "two_pass")]
    ),
)
def test_nothing_of_a_move_is_lost(every, rounds, ranks, spec):
    """Where a round ends is where it began less the mean of what left the residuals."""

    def rank(transport):
        model, alone = net(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        optimizer.register_step_post_hook(lambda *_: alone.append(flattened(model)))
        plan = in_rounds(model, ranks, every, *spec)
        engine = parallelize(model, plan, transport=transport, optimizer=optimizer)
        seen = []
        for number in range(rounds):
            begin, before = flattened(model), residuals(engine)
            for step in range(every * number, every * (number + 1)):
                step_alone(model, optimizer, transport.rank, step)
            move = begin - alone[-1]  # before the hook that ends the round
            seen.append((begin, move, before, residuals(engine), flattened(model)))
        engine.close()
        return seen

    for of_ranks in zip(*run_ranks(ranks, rank), strict=True):
        begin, *_, end = of_ranks[0]
        sent = [move + before - after for _, move, before, after, _ in of_ranks]
        torch.testing.assert_close(
            begin - torch.stack(sent).mean(0), end, rtol=1e-4, atol=1e-5
        )
        for other_begin, *_, other_end in of_ranks:
            assert torch.equal(begin, other_begin)
            assert torch.equal(end, other_end)


def flattened(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def residuals(engine):
    names = [name for name, _ in engine.model.named_parameters()]
    remembered = engine.remembered()
    return torch.cat([remembered[name]["residual"].flatten() for name in names])


def test_a_round_can_end_before_its_time_and_not_twice():
    def rank(transport):
        model = net()
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        plan = in_rounds(model, RANKS, 4)
        with parallelize(
            model, plan, transport=transport, optimizer=optimizer
        ) as engine:
            engine.synchronise()
            assert engine.step == 0  # nothing was to be done
            step_alone(model, optimizer, transport.rank, 0)
            own = parameters(model)
            with pytest.raises(RunError, match="synchronise"):
                engine.state_dict()
            engine.synchronise()
            engine.synchronise()
            assert engine.step == 1
            engine.state_dict()
            for step in range(4):  # a whole round follows
                assert engine.step == 1
                step_alone(model, optimizer, transport.rank, step)
            assert engine.step == 2
        return own, parameters(model)

    before, after = zip(*run_ranks(RANKS, rank), strict=True)
    assert not torch.equal(before[0][0], before[1][0])
    for other in after[1:]:
        assert all(map(torch.equal, after[0], other))


def test_closing_within_a_round_is_told(caplog):
    model = net()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    engine = parallelize(
        model, in_rounds(model, 1), transport=LocalTransport(), optimizer=optimizer
    )
    step_alone(model, optimizer, 0, 0)
    engine.close()
    assert "synchronise" in caplog.text


@pytest.mark.parametrize("spec", [None, (TopK(density=0.5), "allgather")])
def test_a_round_with_nan_can_be_given_up(spec):
    """All ranks are back where it began.

    As of gradients of a step that is refused, a finite rank's move stays in its
    residual, where there is one.
    """

    def rank(transport):
        model, moved = net(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        optimizer.register_step_post_hook(lambda *_: moved.append(flattened(model)))
        plan = in_rounds(model, RANKS, 2, *(spec or ()))
        engine = parallelize(
            model, plan, transport=transport, optimizer=optimizer, on_nonfinite="skip"
        )
        for step in range(2):
            step_alone(model, optimizer, transport.rank, step)
        begin, left = flattened(model), residuals(engine) if spec else None
        step_alone(model, optimizer, transport.rank, 2)
        if transport.rank == 1:
            with torch.no_grad():
                next(model.parameters()).fill_(torch.nan)
        step_alone(model, optimizer, transport.rank, 3)
        assert engine.last_step_skipped
        assert torch.equal(begin, flattened(model))
        if spec is None:
            assert not engine.remembered()
        else:
            came = torch.zeros_like(left) if transport.rank == 1 else begin - moved[-1]
            now = residuals(engine)
            torch.testing.assert_close(now, left + came, rtol=1e-4, atol=1e-6)
        engine.close()

    run_ranks(RANKS, rank)


def test_a_round_with_nan_stops_the_run_if_asked():
    def rank(transport):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        plan = in_rounds(model, RANKS, 2)
        engine = parallelize(
            model, plan, transport=transport, optimizer=optimizer, on_nonfinite="stop"
        )
        if transport.rank == 1:
            with torch.no_grad():
                next(model.parameters()).fill_(torch.nan)
        step_alone(model, optimizer, transport.rank, 0)
        with pytest.raises(NonFiniteError):
            step_alone(model, optimizer, transport.rank, 1)
        engine.close()

    run_ranks(RANKS, rank)


def test_adam_begins_anew_where_it_remembers_nan():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first, *others = model.parameters()
    plan = in_rounds(model, 1, 2)
    with parallelize(
        model, plan, transport=LocalTransport(), optimizer=optimizer,
        on_nonfinite="skip",
    ) as engine:  # fmt: skip
        step_alone(model, optimizer, 0, 0)
        hook = first.register_hook(lambda gradient: gradient * torch.nan)
        step_alone(model, optimizer, 0, 1)
        assert engine.last_step_skipped
        assert first not in optimizer.state
        assert all(optimizer.state[other]["step"] == 2 for other in others)
        hook.remove()
        for step in range(2, 4):
            step_alone(model, optimizer, 0, step)
        assert not engine.last_step_skipped


def test_plans_with_and_without_local_steps_follow_each_other(caplog):
    """Swapping ends the round; no gradient that waits is taken for a move, or back."""
    sparse = TopK(density=0.2), "allgather"

    def rank(transport):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        plans = itertools.cycle(
            [in_rounds(model, RANKS, 3, *sparse), plan_for(model, RANKS, *sparse)]
        )
        engine = parallelize(
            model, next(plans), transport=transport, optimizer=optimizer
        )
        for step in range(8):
            if step % 2 == 0 and step:
                engine.swap(next(plans), replan(engine.step))
                assert not residuals(engine).any()
            step_alone(model, optimizer, transport.rank, step)
        engine.synchronise()
        engine.close()
        return parameters(model)

    first, *others = run_ranks(RANKS, rank)
    assert "what a compressor held back is dropped" in caplog.text
    for other in others:
        assert all(map(torch.equal, first, other))


def test_buffers_follow_rank_0_after_a_round():
    def rank(transport):
        model = net(torch.nn.BatchNorm1d(16))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        plan = in_rounds(model, RANKS, 2)
        with parallelize(model, plan, transport=transport, optimizer=optimizer):
            step_alone(model, optimizer, transport.rank, 0)
            own = model[1].running_mean.clone()
            step_alone(model, optimizer, transport.rank, 1)
            return own, model[1].running_mean.clone()

    alone, together = zip(*run_ranks(RANKS, rank), strict=True)
    assert not torch.equal(alone[0], alone[1])
    assert all(torch.equal(together[0], other) for other in together)


def test_a_round_begins_with_the_parameters_that_its_first_step_finds():
    """Loaded meanwhile; and without a forward of the whole model."""

    def rank(transport):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        plan = in_rounds(model, RANKS, 2, TopK(density=0.01), "allgather")
        with parallelize(model, plan, transport=transport, optimizer=optimizer):
            other = net()
            with torch.no_grad():
                for parameter in other.parameters():
                    parameter += 1
            model.load_state_dict(other.state_dict())
            for _ in range(2):
                optimizer.zero_grad()
                model[1](model[0](torch.ones(1, FEATURES))).sum().backward()
                optimizer.step()
            return parameters(model), parameters(other)

    for after, loaded in run_ranks(RANKS, rank):
        for now, before in zip(after, loaded, strict=True):
            assert (now - before).abs().max() < 0.5
        assert not all(map(torch.equal, after, loaded))


def test_accumulated_gradients_are_one_step():
    def rank(transport):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        plan = in_rounds(model, RANKS, 2)
        with parallelize(
            model, plan, transport=transport, optimizer=optimizer
        ) as engine:
            for step in range(2):
                optimizer.zero_grad()
                with engine.no_sync():
                    loss(model, transport.rank, step).backward()
                loss(model, transport.rank, step).backward()
                optimizer.step()
            assert engine.step == 1

    run_ranks(RANKS, rank)


@pytest.mark.parametrize("outer", OUTER)
def test_a_killed_run_goes_on_bit_by_bit(outer, tmp_path):
    """Each rank by its own optimizer; a checkpoint ends a round on every way."""

    def rank(transport, folder, killed):
        made = workload(world_size=RANKS)
        plan = in_rounds(
            made.model, RANKS, 4, TopK(density=0.2), "allgather", **OUTER[outer]
        )
        options = Options(
            steps=13, seed=7, checkpoint=tmp_path / folder, checkpoint_every=3
        )
        if killed:
            with pytest.raises(Killed):
                train(dying(made, 1, 3), plan, transport, options)
            options = replace(options, resume=True)
            made = workload(world_size=RANKS)
        return train(made, plan, transport, options)

    whole = run_ranks(RANKS, rank, "whole", False)
    resumed = run_ranks(RANKS, rank, "killed", True)
    assert len(resumed[0].iterations_s) < len(whole[0].iterations_s)
    same = {record.parameters_sha256 for record in (*whole, *resumed)}
    assert len(same) == 1


def test_records_are_of_rounds():
    def rank(transport):
        made = workload(world_size=RANKS)
        plan = in_rounds(made.model, RANKS, 2)
        events = []
        options = Options(
            steps=5, epochs=1, watcher=lambda event, engine: events.append(event)
        )
        return train(made, plan, transport, options), events

    record, events = run_ranks(RANKS, rank)[0]
    assert record.local_steps == LocalSteps(every=2)
    dense = record.traffic.dense_nbytes
    assert [event.message_nbytes for event in events] == [0, dense, 0, dense, 0]
    sent = record.traffic.steps_nbytes  # the end of the epoch ends a round too
    assert sent == (0, dense, 0, dense, dense)
    assert record.traffic.message_nbytes == pytest.approx(3 / 5 * dense)
    rounds = [sum(record.iterations_s[i : i + 2]) / 2 for i in (0, 2)]
    assert record.iteration.count == 2
    assert record.iteration.min_s == pytest.approx(min(rounds))
    took = record.timing  # from the first forward of a round on
    assert 0 < took.backward_start_s <= took.compute_end_s
    assert len(took.buckets) == 2


def test_what_local_steps_cannot_do_is_refused():
    model = net()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    plan, here = in_rounds(model, 1), LocalTransport()
    with pytest.raises(InputError, match="optimizer=optimizer"):
        parallelize(model, plan, transport=here)
    with pytest.raises(InputError, match="GradScaler"):
        parallelize(
            model,
            plan,
            transport=here,
            optimizer=optimizer,
            grad_scaler=torch.amp.GradScaler("cpu"),
        )
    with parallelize(model, plan, transport=here, optimizer=optimizer) as engine:
        with pytest.raises(InputError, match="on_reduced"):
            engine.on_reduced(print)
        with pytest.raises(InputError, match="Join"), Join([engine]):
            pass
        engine.skip_step()  # of which no other rank has to know


def test_a_second_optimizer_is_refused_whose_steps_no_round_would_average():
    model = net()
    first, *rest = model.parameters()
    counted = torch.optim.SGD([first], lr=0.1)
    other = torch.optim.Adam(rest, lr=0.1)
    plan, here = in_rounds(model, 1), LocalTransport()
    with parallelize(model, plan, transport=here, optimizer=counted):
        loss(model, 0, 0).backward()
        counted.step()
        with pytest.raises(RunError, match=r"another optimizer \(Adam\)"):
            other.step()


@pytest.mark.parametrize("spec", [Vgc(), Rows()])
def test_compressors_of_single_gradients_are_refused(spec):
    with pytest.raises(ValidationError, match="single batches"):
        in_rounds(net(), 2, 3, spec, "allgather")


def test_momentum_correction_is_refused():
    content = in_rounds(net(), 2).model_dump(mode="json", by_alias=True)
    with pytest.raises(ValidationError, match="momentum"):
        Plan.model_validate({**content, "momentum_correction": True})


def test_a_state_that_is_loaded_is_all_that_a_round_remembers():
    """And is left as it is."""
    weight = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    rounds = Rounds(LocalSteps(every=2, momentum=0.9), {"weight": weight}, optimizer)

    def end_one():
        rounds.taken = 2
        rounds.begins["weight"].grad = torch.ones(2)
        rounds.end()

    given = {"weight": {OUTER_MOMENTUM: torch.full((2,), 3.0)}}
    rounds.taken = 1
    rounds.load_state(given)
    assert rounds.taken == 0
    end_one()
    assert rounds.state()["weight"][OUTER_MOMENTUM].tolist() == pytest.approx([3.7] * 2)
    assert given["weight"][OUTER_MOMENTUM].tolist() == [3.0, 3.0]
    rounds.load_state({})
    assert rounds.state() == {}


@pytest.mark.parametrize("call", ["parallelize", "synchronise", "load_state_dict"])
@pytest.mark.parametrize("spec", [None, TopK(density=0.1)])
def test_what_is_made_in_inference_mode_lasts(spec, call):
    """An evaluation calls the engine, and training goes on."""
    collective = "allgather" if spec else "allreduce"

    def parameters(mode):
        def within(name):
            return mode() if name == call else torch.no_grad()

        model = net()
        plan = in_rounds(model, 1, spec=spec, collective=collective, **OUTER["diloco"])
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        with within("parallelize"):
            engine = parallelize(
                model, plan, transport=LocalTransport(), optimizer=optimizer
            )
        with engine:
            for step in range(4):
                step_alone(model, optimizer, 0, step)
                with within("synchronise"):
                    engine.synchronise()
                with within("load_state_dict"):
                    engine.load_state_dict(deepcopy(engine.state_dict()))
        return list(model.parameters())

    assert all(
        map(torch.equal, parameters(torch.inference_mode), parameters(torch.no_grad))
    )
