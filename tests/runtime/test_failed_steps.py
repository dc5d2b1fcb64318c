"""Steps that fail, or are refused: what all ranks then do alike."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn

from comm_plan import parallelize
from comm_plan.compressors.base import Compressor, may_take_together
from comm_plan.errors import CollectiveError, RunError
from comm_plan.plans import Bucket, Fp16, TopK
from comm_plan.plans.compression.rows import Rows
from comm_plan.tests.runtime import trainings
from comm_plan.tests.runtime.trainings import Failing, plan_for
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport

WIDTH = 6
METHODS = {"dense": (), "topk": (TopK(density=0.5), "allgather")}


class Norm(nn.Module):
    """Two layers that may be called one by one, and a buffer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, 4)
        self.second = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(3))
        self.room = True
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.5, generator=generator)

    def forward(self, x):
        if not self.room:
            raise MemoryError("no room for the activations")
        return self.second(self.first(x))


def inputs(seed=0):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed))


def loss_of(model, seed=0):
    return model(inputs(seed)).square().mean()


def fail_in_the_loss(model):
    """Run a backward that raises before it comes to the model's parameters."""
    with pytest.raises(MemoryError):
        Failing.apply(loss_of(model)).backward()


def fail_half_way(model):
    """Call the layers one by one, and fail once the second has its gradients."""
    with pytest.raises(MemoryError):
        model.second(Failing.apply(model.first(inputs()))).sum().backward()


def fail_in_the_forward(model):
    model.room = False
    with pytest.raises(MemoryError):
        loss_of(model)
    model.room = True


def raise_memory_error(gradient):
    raise MemoryError("no room for the gradient")


def equal_on_all(states):
    return all(
        torch.equal(state[name], value)
        for state in states
        for name, value in states[0].items()
    )


def trained(transport, loop, method="topk", **options):
    """Return the parameters and buffers after ``loop`` and a step that succeeds."""
    model = Norm()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = plan_for(model, transport.world_size, *METHODS[method])
    with parallelize(model, plan, transport=transport, **options) as engine:
        loop(transport.rank, model, engine, optimizer)
        optimizer.zero_grad()
        loss_of(model, transport.rank).backward()
        optimizer.step()
        transport.barrier()  # the hooks on optimizers are those of all threads
    return model.state_dict()


def test_a_second_backward_of_one_forward_may_fail():
    """The forward began the step before, not the one that is given up."""

    def loop(rank, model, engine, optimizer):
        output = model(inputs(rank))
        output.square().mean().backward(retain_graph=True)
        if rank == 0:
            output.register_hook(raise_memory_error)
            with pytest.raises(MemoryError):
                output.sum().backward()
        else:
            output.sum().backward()
        optimizer.zero_grad()
        loss_of(model, rank).backward()
        optimizer.step()
        assert (engine.step, engine.skipped_steps) == (3, 1)

    assert equal_on_all(run_ranks(2, trained, loop))


def test_who_skips_under_stop_says_that_the_others_cannot_be_told():
    """They would take what it sends for a gradient that is too large."""

    def rank(transport):
        model = Norm()
        plan = plan_for(model, 2)
        with parallelize(
            model, plan, transport=transport, on_nonfinite="stop"
        ) as engine:
            if transport.rank == 0:
                fail_in_the_loss(model)
                engine.skip_step()
            else:
                loss_of(model).backward()

    with pytest.raises(RunError, match="pass on_nonfinite='skip'"):
        run_ranks(2, rank)


class MayUseNothing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2)

    def forward(self, x, use):
        return self.layer(x) if use else x.sum(1, keepdim=True).requires_grad_()


@pytest.mark.parametrize("with_scaler", [False, True])
def test_after_a_refused_step_a_rank_may_use_no_parameter(with_scaler):
    """No update came in between: a scaler, or the loop, left it out."""

    def rank(transport):
        model = MayUseNothing()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0) if with_scaler else None
        method = () if with_scaler else (TopK(density=0.5), "allgather")
        plan = plan_for(model, 2, *method)
        with parallelize(
            model,
            plan,
            transport=transport,
            find_unused_parameters=True,
            grad_scaler=scaler,
        ) as engine:
            loss = (model(inputs(), True) * torch.inf).sum()
            if scaler is None:
                loss.backward()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
            model(inputs(), transport.rank == 0).sum().backward()
            optimizer.step()
            assert engine.step == 2
            transport.barrier()  # the hooks on optimizers are those of all threads
            return model.state_dict()

    assert equal_on_all(run_ranks(2, rank))


class Networks(nn.Module):
    """Two in one model, each with an optimizer of its own, as a GAN may be."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, 2) for _ in range(2))

    def forward(self, x, which):
        return self.parts[which](x)


@pytest.mark.parametrize("fails", [False, True], ids=["inf", "failed backward"])
def test_a_refused_step_leaves_gradients_of_other_optimizers_alone(fails):
    """NaN in there would refuse their step, and that the next one, without end."""

    def rank(transport):
        model = Networks()
        optimizers = [torch.optim.SGD(p.parameters(), lr=0.1) for p in model.parts]
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        with parallelize(
            model,
            plan_for(model, 2, TopK(density=0.5), "allgather"),
            transport=transport,
            find_unused_parameters=True,
            grad_scaler=scaler,
        ) as engine:
            for step in range(6):
                which = step % 2
                loss = model(inputs(step), which).sum()
                is_bad = step == transport.rank == 1
                if is_bad and fails:
                    with pytest.raises(MemoryError):
                        Failing.apply(loss).backward()
                    engine.skip_step()
                else:
                    loss = loss * torch.inf if is_bad else loss
                    scaler.scale(loss).backward()
                scaler.step(optimizers[which])
                scaler.update()
                optimizers[which].zero_grad()  # only now, and its own only
            transport.barrier()  # the hooks on optimizers are those of all threads
            return engine.skipped_steps, scaler.get_scale()

    assert run_ranks(2, rank) == [(1, 4.0), (1, 4.0)]


def test_a_step_that_is_over_is_not_skipped():
    """The optimizer failed: to give up the next step would leave this rank behind."""
    model = Norm()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    room = False

    def need_memory(optimizer, arguments, keywords):
        if not room:
            raise MemoryError("no room for the state")

    optimizer.register_step_pre_hook(need_memory)
    with parallelize(
        model, plan_for(model, 1), transport=LocalTransport(), on_nonfinite="skip"
    ) as engine:
        loss_of(model).backward()
        with pytest.raises(MemoryError):
            optimizer.step()
        with pytest.raises(RunError, match="the step is over"):
            engine.skip_step()
        room = True
        optimizer.step()
        engine.skip_step()  # of a batch for which there was no room
        assert (engine.step, engine.skipped_steps) == (2, 1)


def scaled_iteration(model, scaler, optimizer, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def with_scalers(loop, method, on_nonfinite):
    """Return a scaler for each of two ranks, and what trains as one by its own."""
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0) for _ in range(2)]

    def rank(transport):
        scaler = scalers[transport.rank]
        return trained(
            transport, loop, method, on_nonfinite=on_nonfinite, grad_scaler=scaler
        )

    return scalers, rank


@pytest.mark.parametrize("on_nonfinite", ["skip", "propagate"])
@pytest.mark.parametrize("method", METHODS)
def test_a_scaler_skips_a_step_with_inf_on_all_ranks(method, on_nonfinite):
    def loop(rank, model, engine, optimizer):
        scaler = scalers[rank]
        factor = torch.inf if rank == 1 else 1.0
        scaled_iteration(model, scaler, optimizer, loss_of(model) * factor)
        assert scaler.get_scale() == 4.0
        assert equal_on_all([model.state_dict(), Norm().state_dict()])
        scaled_iteration(model, scaler, optimizer, loss_of(model, rank))

    scalers, rank = with_scalers(loop, method, on_nonfinite)
    assert equal_on_all(run_ranks(2, rank))


@pytest.mark.parametrize("fail", [fail_in_the_loss, fail_half_way, fail_in_the_forward])
@pytest.mark.parametrize(
    ("method", "on_nonfinite"), [("dense", "skip"), ("topk", "propagate")]
)
def test_a_scaler_skips_a_step_that_failed_on_one_rank(fail, method, on_nonfinite):
    """Who fails does the rest of the iteration too, so that all scales stay equal."""

    def loop(rank, model, engine, optimizer):
        scaler = scalers[rank]
        scaled_iteration(model, scaler, optimizer, loss_of(model, rank))
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        if rank == 0:
            fail(model)
            engine.skip_step()
        else:
            scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert all(map(torch.equal, before, model.parameters()))
        assert scaler.get_scale() == 4.0

    scalers, rank = with_scalers(loop, method, on_nonfinite)
    assert equal_on_all(run_ranks(2, rank))


def test_a_scaler_that_is_switched_off_skips_nothing():
    """As for bfloat16: the optimizer then steps by what it finds."""

    def loop(rank, model, engine, optimizer):
        if rank == 0:
            fail_in_the_loss(model)
            engine.skip_step()
        else:
            loss_of(model).backward()
        assert all(parameter.grad is None for parameter in model.parameters())
        optimizer.step()

    def rank(transport):
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        return trained(transport, loop, grad_scaler=scaler)

    assert equal_on_all(run_ranks(2, rank))


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("with_scaler", [False, True])
def test_a_gradient_after_a_step_given_up_is_its_own(skips, with_scaler):
    """What a scaler must find in the one must not be in the next."""
    model, reference = Norm(), Norm()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if with_scaler else None
    with parallelize(
        model, plan_for(model, 1), transport=LocalTransport(), grad_scaler=scaler
    ) as engine:
        fail_half_way(model)
        if skips:
            engine.skip_step()
        model.zero_grad()
        loss_of(model).backward()
    loss_of(reference).backward()
    for own, expected in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(own.grad, expected.grad)


class Owned(nn.Parameter):
    """A parameter whose ``.grad`` only one thread touches: the one that made it."""

    def __init__(self, _):
        self.owner = threading.get_ident()

    def check(self):
        assert threading.get_ident() == self.owner, "another thread touched .grad"

    @property
    def grad(self):
        self.check()
        return torch.Tensor.grad.__get__(self)

    @grad.setter
    def grad(self, gradient):
        self.check()
        torch.Tensor.grad.__set__(self, gradient)


@pytest.mark.usefixtures("as_on_a_gpu_too")
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("method", [*trainings.METHODS, "rows"])
def test_no_other_thread_touches_what_the_program_may_take_away(method, share):
    """As by ``zero_grad`` after a backward that failed with buckets under way."""
    sparse = method == "rows"
    spec, collective = trainings.METHODS.get(method, (Rows(), "allgather"))

    def rank(transport):
        model = nn.Sequential(nn.Embedding(9, WIDTH, sparse=sparse), Norm())
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                setattr(module, name, Owned(parameter))
        groups = [["1.second.bias", "1.second.weight"], ["1.first.bias"]]
        buckets = [
            Bucket(tensors=group)
            if sparse
            else Bucket(tensors=group, compressor=spec, collective=collective)
            for group in [*groups, ["1.first.weight"]]
        ]
        table = Bucket(tensors=["0.weight"], compressor=spec, collective=collective)
        plan = plan_for(model, 2).model_copy(update={"buckets": (*buckets, table)})
        with parallelize(
            model, plan, transport=transport, gradient_as_bucket_view=share
        ) as engine:
            for _ in range(3):
                model(torch.arange(4) + transport.rank).square().mean().backward()
                grads = [p.grad.to_dense() for p in model.parameters()]
                model.zero_grad()
            assert engine.step == 3
        return grads

    first, second = run_ranks(2, rank)
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("method", ["dense", "topk", "doublesqueeze"])
def test_later_hooks_see_a_rank_s_own_gradient_and_what_they_make_of_it_is_not_used(
    method, share
):
    """That of a parameter that completes a bucket may be the mean by then."""

    def rank(transport):
        model, alone = Norm(), Norm()
        loss_of(alone, transport.rank).backward()
        own = {name: p.grad for name, p in alone.named_parameters()}
        plan = plan_for(model, 2, *trainings.METHODS[method])
        begun = set()

        def watch(bucket, name, parameter):
            if bucket not in begun:
                assert torch.equal(parameter.grad, own[name])
            begun.add(bucket)
            parameter.grad = torch.full_like(parameter, torch.nan)

        with parallelize(
            model, plan, transport=transport, gradient_as_bucket_view=share
        ):
            named = dict(model.named_parameters())
            for number, bucket in enumerate(plan.buckets):
                for name in bucket.tensors:
                    named[name].register_post_accumulate_grad_hook(
                        partial(watch, number, name)
                    )
            for _ in range(2):
                begun.clear()
                model.zero_grad()
                loss_of(model, transport.rank).backward()
                assert len(begun) == len(plan.buckets)
        return {name: p.grad for name, p in model.named_parameters()}

    means = run_ranks(2, rank)
    assert equal_on_all(means)
    assert all(mean.isfinite().all() for mean in means[0].values())


def test_a_backward_that_failed_in_eval_mode_is_noticed():
    def loop(rank, model, engine, optimizer):
        model.eval()
        if rank == 0:
            fail_half_way(model)
        else:
            loss_of(model, rank).backward()
            optimizer.step()
        optimizer.zero_grad()
        loss_of(model, rank).backward()
        optimizer.step()
        assert (engine.step, engine.skipped_steps) == (2, 1)

    assert equal_on_all(run_ranks(2, trained, loop))


EVALUATIONS = {
    "with gradients": nullcontext,
    "without": torch.no_grad,
    "in inference mode": torch.inference_mode,
}


@pytest.mark.parametrize("evaluating", EVALUATIONS.values(), ids=EVALUATIONS)
def test_a_backward_that_failed_is_noticed_in_an_evaluation(evaluating):
    """An evaluation between two backwards of one step gives nothing up."""
    model = Norm()
    with parallelize(model, plan_for(model, 1), transport=LocalTransport()) as engine:
        fail_half_way(model)
        model.eval()
        with evaluating():
            model(inputs())
        assert engine.skipped_steps == 1
        model.train()
        model.second(torch.ones(2, 4)).sum().backward()
        model.eval()
        with evaluating():
            model(inputs())
        model.first(inputs()).sum().backward()
        assert (engine.step, engine.skipped_steps) == (2, 1)


def test_a_forward_on_another_thread_gives_up_no_backward():
    """Of who samples from the model, say, while it is trained."""

    def rank(transport):
        model, hidden = Norm(), []

        def evaluate():
            with torch.no_grad():
                model(inputs())

        def evaluate_beside(gradient):
            with ThreadPoolExecutor(1) as other:
                other.submit(evaluate).result()

        with parallelize(
            model, plan_for(model, 2), transport=transport, on_nonfinite="skip"
        ) as engine:
            keep = model.first.register_forward_hook(
                lambda module, given, output: hidden.append(output)
            )
            loss = loss_of(model, transport.rank)
            keep.remove()
            hidden[0].register_hook(evaluate_beside)
            loss.backward()
            assert (engine.step, engine.skipped_steps) == (1, 0)

    run_ranks(2, rank)


def test_a_backward_that_failed_is_noticed_by_what_begins_another_step():
    def loop(rank, model, engine, optimizer):
        if rank == 0:
            fail_half_way(model)
        else:
            loss_of(model, rank).backward()
        engine.set_density_floor(0.5)
        assert (engine.step, engine.skipped_steps) == (1, 1)

    assert equal_on_all(run_ranks(2, trained, loop))


def test_an_engine_is_not_closed_in_the_middle_of_an_exchange():
    model = Norm()
    with parallelize(
        model,
        plan_for(model, 1),
        transport=LocalTransport(),
        on_nonfinite="propagate",
    ) as engine:
        engine.on_reduced(lambda _: engine.close())
        with pytest.raises(RunError, match="in the middle of an exchange"):
            loss_of(model).backward()


def test_a_backward_that_failed_without_a_forward_is_named():
    """Nothing tells the engine in time: what others averaged may be in ``.grad``."""

    def rank(transport):
        model = Norm()
        plan = plan_for(model, 2, *METHODS["topk"])
        with parallelize(model, plan, transport=transport) as engine:
            if transport.rank == 0:
                fail_half_way(model)
                model.zero_grad()
                with pytest.raises(RunError, match=r"call engine\.skip_step\(\)"):
                    model.second(model.first(inputs())).sum().backward()
                engine.skip_step()
            else:
                for _ in range(2):
                    model.second(model.first(inputs())).sum().backward()
            model.second(model.first(inputs())).sum().backward()
            assert (engine.step, engine.skipped_steps) == (3, 2)
            return {name: p.grad for name, p in model.named_parameters()}

    assert equal_on_all(run_ranks(2, rank))


@pytest.mark.parametrize("before", [0, 1], ids=["the only one", "the second"])
def test_a_forward_that_failed_may_be_repeated(before):
    """As with a smaller batch; its buffers have not been brought from rank 0 twice."""

    def loop(rank, model, engine, optimizer):
        losses = [loss_of(model, rank) for _ in range(before)]
        if rank == 0:
            fail_in_the_forward(model)
        losses.append(loss_of(model, rank))
        sum(losses).backward()
        optimizer.step()
        assert (engine.step, engine.skipped_steps) == (1, 0)

    assert equal_on_all(run_ranks(2, trained, loop))


def test_a_forward_that_failed_may_be_left_out():
    def loop(rank, model, engine, optimizer):
        loss = loss_of(model, rank)
        if rank == 0:
            fail_in_the_forward(model)
        else:
            loss = loss + loss_of(model, rank)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        sum(loss_of(model, rank) for _ in range(2)).backward()
        optimizer.step()

    assert equal_on_all(run_ranks(2, trained, loop))


class Broken(LocalTransport):
    """One rank of many, whose sums fail."""

    world_size = 2

    def all_reduce(self, tensor, operation="sum"):
        raise CollectiveError("the link is gone")

    def duplicate(self):
        return Broken(self.device)


@pytest.mark.parametrize("find_unused_parameters", [False, True])
def test_after_a_failed_collective_the_next_forward_says_so_again(
    find_unused_parameters,
):
    """And names no parameter that would have had no gradient."""
    model = Norm()
    with parallelize(
        model,
        plan_for(model, 2),
        transport=Broken(),
        find_unused_parameters=find_unused_parameters,
    ):
        for attempt in (lambda: loss_of(model).backward(), lambda: loss_of(model)):
            with pytest.raises(CollectiveError, match="the link is gone"):
                attempt()


@pytest.mark.parametrize("goes_on", ["with the next batch", "with the optimizer"])
def test_a_failure_that_a_scaler_does_not_learn_of_is_an_error(goes_on):
    """Its scale would be another than those of the other ranks."""

    def loop(rank, model, engine, optimizer):
        scaler = scalers[rank]
        scaled_iteration(model, scaler, optimizer, loss_of(model, rank))
        optimizer.zero_grad()
        if rank == 0:
            fail_half_way(model)
            with pytest.raises(RunError, match="GradScaler does not know: call eng"):
                if goes_on == "with the optimizer":
                    optimizer.step()
                else:
                    model(inputs())
            engine.skip_step()
        else:
            scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 4.0

    scalers, rank = with_scalers(loop, "topk", "propagate")
    assert equal_on_all(run_ranks(2, rank))


@pytest.mark.parametrize("method", ["fp16", "topk"])
def test_gradients_that_do_not_fit_together_are_skipped_by_all(method, monkeypatch):
    """On a GPU those of a bucket are copied end to end, which may take more memory."""
    spec, collective = {
        "fp16": (Fp16(), "allreduce"),
        "topk": (TopK(density=0.5), "allgather"),
    }[method]
    monkeypatch.setattr(Compressor, "takes_together", property(may_take_together))
    failing = threading.local()
    cat = torch.cat

    def cat_or_fail(*arguments, **keywords):
        if getattr(failing, "now", False):
            failing.now = False
            raise MemoryError("no room for a copy")
        return cat(*arguments, **keywords)

    def rank(transport):
        model = Norm()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = plan_for(model, 2, spec, collective, 4)
        with parallelize(
            model, plan, transport=transport, on_nonfinite="skip"
        ) as engine:
            for step in range(4):
                optimizer.zero_grad()
                failing.now = transport.rank == 0 and step == 2
                if failing.now:
                    with pytest.raises(MemoryError):
                        loss_of(model, transport.rank).backward()
                    engine.skip_step()
                else:
                    loss_of(model, transport.rank).backward()
                assert engine.last_step_skipped == (step == 2)
                optimizer.step()
            transport.barrier()
        return model.state_dict()

    monkeypatch.setattr(torch, "cat", cat_or_fail)
    assert equal_on_all(run_ranks(2, rank))
