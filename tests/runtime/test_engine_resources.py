"""What an engine holds on to: memory, threads, and moments between backward passes."""

import gc
import subprocess
import sys
import threading
import tracemalloc
import weakref
from contextlib import nullcontext, suppress

import pytest
import torch
import torch.distributed as dist
from torch import nn

from comm_plan import parallelize
from comm_plan.compressors.base import RESIDUAL, VARIANCE
from comm_plan.errors import CollectiveError
from comm_plan.plans import Dense, TopK, Vgc
from comm_plan.runtime.second_moments import ExactSecondMoments, MicroBatchSecondMoments
from comm_plan.runtime.second_moments.exact import NoExactSecondMoments
from comm_plan.tests.runtime.test_swap import replan
from comm_plan.tests.runtime.trainings import FEATURES, net, plan_for
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.distributed import TorchTransport
from comm_plan.transports.local import LocalTransport


def live_nbytes():
    """Return the bytes of all storages that Python can reach.

    What ``vmap`` has left of a layer that it could not take has none.
    """
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, nn.Parameter):
            for tensor in (thing, thing.grad if thing.is_leaf else None):
                with suppress(NotImplementedError):
                    if tensor is not None:
                        storage = tensor.untyped_storage()
                        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


class CountingTransport(LocalTransport):
    """Looks at the memory in the middle of each exchange, with all messages there."""

    def __init__(self):
        super().__init__()
        self.most_nbytes = 0

    def duplicate(self):
        return self

    def all_gather(self, tensor):
        gathered = super().all_gather(tensor)
        self.most_nbytes = max(self.most_nbytes, live_nbytes())
        return gathered

    def all_reduce(self, tensor, operation="sum"):
        self.most_nbytes = max(self.most_nbytes, live_nbytes())


def wide():
    return nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 300))


def extra_nbytes(spec, collective):
    """Return parameters, promised message, and the most that the engine added."""
    model = wide()
    nbytes = sum(p.nbytes for p in model.parameters())
    plan = plan_for(model, 1, spec, collective)
    x = torch.randn(4, 300)

    def step():
        model.zero_grad()
        model(x).square().mean().backward()

    step()
    alone = live_nbytes()  # parameters, gradients, data
    transport = CountingTransport()
    engine = parallelize(model, plan, transport=transport)
    for _ in range(3):
        step()
    most = max(transport.most_nbytes, live_nbytes())
    engine.close()
    return (
        nbytes,
        spec.message_nbytes([p.numel() for p in model.parameters()], "allgather"),
        (most - alone),
    )


@pytest.mark.parametrize("shared", [True, False])
def test_beside_a_shared_bucket_there_is_one_gradient_at_a_time(shared):
    model = net()
    plan = plan_for(model, 1, per_bucket=10)
    engine = parallelize(
        model, plan, transport=LocalTransport(), gradient_as_bucket_view=shared
    )
    gradients, alive = [], []

    def look(parameter):
        alive.append(sum(gradient() is not None for gradient in gradients))
        gradients.append(weakref.ref(parameter.grad))

    with engine:
        model(torch.ones(2, FEATURES)).sum().backward()  # it makes the buffer
        model.zero_grad()
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(look)
        model(torch.ones(2, FEATURES)).sum().backward()
    assert len(alive) == len(list(model.parameters())) > 2
    assert alive == ([0] * len(alive) if shared else list(range(len(alive))))


@pytest.mark.slow
def test_topk_adds_one_residual_and_messages_to_the_memory():
    """One message is kept to be sent, one is being gathered, one packed."""
    parameters, message, extra = extra_nbytes(TopK(density=0.01), "allgather")
    assert extra <= parameters + 3 * message + 4096
    assert extra >= parameters, "the count misses the residuals"


@pytest.mark.slow
def test_dense_buckets_add_one_copy_as_ddp_does():
    parameters, _, extra = extra_nbytes(Dense(), "allreduce")
    assert extra <= parameters + 4096


def test_selecting_needs_no_copy_of_a_large_tensor():
    """Counted while it runs; NumPy tells tracemalloc what it allocates."""
    spec = TopK(density=0.001)
    model = nn.Linear(2000, 1000, bias=False)
    plan = plan_for(model, 1, spec, "allgather")
    engine = parallelize(model, plan, transport=LocalTransport())
    x = torch.randn(2, 2000)
    model(x).square().mean().backward()
    tracemalloc.start()
    try:
        model(x).square().mean().backward()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        engine.close()
    assert peak < model.weight.nbytes / 4


def loss_of(model, rank, part, parts):
    generator = torch.Generator().manual_seed(10 * rank + part)
    x = torch.randn(3, FEATURES, generator=generator)
    return model(x).square().sum(1).mean() / parts


def samples_of(model, rank, parts):
    """Return every sample's gradient over the whole batch of 3 * parts, by name."""
    gradients = []
    for part in range(parts):
        generator = torch.Generator().manual_seed(10 * rank + part)
        for x in torch.randn(3, FEATURES, generator=generator):
            model.zero_grad()
            (model(x[None]).square().sum() / (3 * parts)).backward()
            gradients.append({n: p.grad.clone() for n, p in model.named_parameters()})
    return gradients


def accumulate(transport, parts):
    """Return residuals and variances of VGC after one accumulated step."""
    model = net()
    plan = plan_for(model, transport.world_size, Vgc(alpha=1e9), "allgather")
    engine = parallelize(model, plan, transport=transport)  # sends nothing
    with engine.no_sync():
        for part in range(parts - 1):
            loss_of(model, transport.rank, part, parts).backward()
    assert engine.step == 0
    loss_of(model, transport.rank, parts - 1, parts).backward()
    state = engine.remembered()
    engine.close()
    return state


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_accumulated_second_moments_are_those_of_the_whole_batch(parts):
    """With `no_sync` r and v are over all samples of all backward passes."""
    for rank, state in enumerate(run_ranks(2, accumulate, parts)):
        samples = samples_of(net(), rank, parts)
        for name, kept in state.items():
            stacked = torch.stack([sample[name].flatten() for sample in samples])
            torch.testing.assert_close(kept[RESIDUAL], stacked.sum(0))
            torch.testing.assert_close(kept[VARIANCE], stacked.square().sum(0))


class Tripping(nn.Module):
    """Two layers; the backward of the first fails on demand."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 4), nn.Linear(4, 2)
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=generator)
        self.trips = False

    def forward(self, x):
        hidden = self.first(x)
        if self.trips:
            hidden.register_hook(trip)
        return self.second(hidden)


def trip(gradient):
    raise MemoryError("no room")


class Noting:
    """Second moments that note what they hand over, by shape."""

    def __init__(self, moments):
        self.moments, self.found = moments, {}
        self.knows, self.reset = moments.knows, moments.reset
        self.remove, self.of_parts = moments.remove, moments.of_parts

    def of(self, parameter):
        self.found[parameter.shape] = moment = self.moments.of(parameter)
        return moment


def moments_of_a_step(transport, parts, trips):
    """Return the second moments and gradients of a step of ``parts`` backwards.

    If it ``trips``, one was given up before, as the last backward of rank 0 failed.
    """
    model = Tripping()
    exact = parts == 1
    noting = Noting(
        ExactSecondMoments(model) if exact else MicroBatchSecondMoments(model, parts)
    )
    gradients = {}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p: gradients.update({p.shape: p.grad.clone()})
        )
    plan = plan_for(model, 2, Vgc(alpha=1e9), "allgather", per_bucket=1)
    engine = parallelize(model, plan, transport=transport, second_moments=noting)

    def step(trips):
        model.zero_grad()
        for part in range(parts - 1):
            with engine.no_sync():
                loss_of(model, transport.rank, part, parts).backward()
        model.trips = trips
        loss = loss_of(model, transport.rank, parts - 1, parts)
        model.trips = False
        loss.backward()

    if trips:
        fails = transport.rank == 0
        with pytest.raises(MemoryError) if fails else nullcontext():
            step(fails)
    step(False)
    engine.close()
    return noting.found, gradients


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_step_given_up_leaves_nothing_to_the_next(parts):
    after = run_ranks(2, moments_of_a_step, parts, True)
    alone = run_ranks(2, moments_of_a_step, parts, False)
    torch.testing.assert_close(after, alone, rtol=0, atol=0)


class Counted(LocalTransport):
    """Knows which of its duplicates are open."""

    def __init__(self):
        super().__init__()
        self.opened = []

    def duplicate(self):
        other = Counted()
        other.opened = self.opened
        self.opened.append(other)
        return other

    def close(self):
        self.opened.remove(self)


def hooks_of(model, optimizer):
    """Return how many hooks hang on these."""
    kinds = "_forward_pre_hooks", "_forward_hooks"
    on_modules = [len(getattr(m, kind)) for m in model.modules() for kind in kinds]
    of_parameters = (p._post_accumulate_grad_hooks for p in model.parameters())
    return (
        sum(on_modules),
        sum(len(hooks or ()) for hooks in of_parameters),
        len(optimizer._optimizer_step_pre_hooks),
        len(optimizer._optimizer_step_post_hooks),
    )


def corrected(model, spec, world_size=1):
    plan = plan_for(model, world_size, spec, "allgather")
    return plan.model_copy(update={"momentum_correction": True})


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(16), nn.Embedding(3, 16, scale_grad_by_freq=True)]
)
def test_an_engine_that_cannot_be_made_leaves_nothing_behind(layer):
    model, transport = net(layer), Counted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = hooks_of(model, optimizer), threading.active_count()
    with pytest.raises(NoExactSecondMoments):
        parallelize(
            model, corrected(model, Vgc()), transport=transport, optimizer=optimizer
        )
    assert not transport.opened
    assert (hooks_of(model, optimizer), threading.active_count()) == before


def test_an_engine_whose_first_collective_fails_leaves_nothing_behind():
    class Torn(Counted):
        world_size = 2

        def gather_objects(self, value):
            is_digest = isinstance(value, str)  # of another model on the second rank
            return [value, None if is_digest else value]

        def broadcast(self, tensor, root=0):
            raise CollectiveError("broadcast failed: connection reset")

    model, transport = net(), Torn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = hooks_of(model, optimizer)
    with pytest.raises(CollectiveError):
        parallelize(
            model,
            corrected(model, Vgc(), world_size=2),
            transport=transport,
            optimizer=optimizer,
        )
    assert not transport.opened
    assert hooks_of(model, optimizer) == before


@pytest.mark.parametrize("change", ["swap", "another engine"])
@pytest.mark.parametrize("momentum", [True, False])
def test_an_engine_goes_on_by_its_plan_if_another_cannot_be(momentum, change):
    """Also if the other plan corrects momentum as it does."""

    def trained(try_to_change):
        model = net(nn.BatchNorm1d(16))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        plan = plan_for(model, 1, TopK(density=0.1), "allgather")
        plan = plan.model_copy(update={"momentum_correction": momentum})
        here = {"transport": LocalTransport(), "optimizer": optimizer}
        engine = parallelize(model, plan, **here)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, 0, step, 1).backward()
            optimizer.step()
            if try_to_change:
                before = hooks_of(model, optimizer)
                with pytest.raises(NoExactSecondMoments):
                    if change == "swap":
                        engine.swap(corrected(model, Vgc()), replan(step))
                    else:
                        parallelize(model, corrected(model, Vgc()), **here)
                assert hooks_of(model, optimizer) == before
        assert engine.step == 4
        assert engine.plan == plan
        assert engine.replans == []
        engine.close()
        return list(model.parameters())

    assert all(map(torch.equal, trained(True), trained(False)))


FAILING = """
import sys
import torch
from comm_plan import parallelize
from comm_plan.errors import CollectiveError
from comm_plan.tests.runtime.test_engine_resources import Broken
from comm_plan.tests.runtime.trainings import FEATURES, net, plan_for

def refuse(gradient):
    raise ValueError("mine")

model = net()
engine = parallelize(model, plan_for(model, 1), transport=Broken())
if sys.argv[1] == "ValueError":
    next(iter(model.parameters())).register_hook(refuse)
try:
    model(torch.ones(2, FEATURES)).sum().backward()
except (CollectiveError, ValueError) as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("error", ["CollectiveError", "ValueError"])
def test_the_interpreter_ends_after_a_failure_even_if_nobody_closes(error):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FAILING, error],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == error
    assert done.stderr == ""


class Broken(LocalTransport):
    """Fails in every all-reduce."""

    def duplicate(self):
        return self

    def all_reduce(self, tensor, operation="sum"):
        raise CollectiveError("all-reduce failed: connection reset")


def test_an_engine_may_be_closed_after_the_process_group():
    """As by a ``with`` block around a whole program, or by an ``atexit``."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = net()
    engine = parallelize(model, plan_for(model, 1), transport=TorchTransport())
    model(torch.ones(2, FEATURES)).sum().backward()
    dist.destroy_process_group()
    engine.close()


def test_what_the_engine_opened_is_closed_and_what_it_was_given_is_not():
    class Given(Counted):
        def close(self):
            assert self in self.opened, "it is the program's"
            super().close()
            raise OSError("not connected")

    model, transport = net(), Given()
    threads = threading.active_count()
    engine = parallelize(model, plan_for(model, 1), transport=transport)
    (channel,) = transport.opened
    channel.__class__ = Given
    with pytest.raises(OSError, match="not connected"):
        engine.close()
    assert not transport.opened
    assert threading.active_count() == threads


def test_a_failed_collective_fails_the_steps_that_follow():
    """Nothing waits for ranks that are gone, and closing is still clean."""
    model = net()
    engine = parallelize(model, plan_for(model, 1), transport=Broken())
    for _ in range(2):
        with pytest.raises(CollectiveError, match="connection reset"):
            model(torch.ones(2, FEATURES)).sum().backward()
    engine.close()
    engine.close()
    model.zero_grad()
    model(torch.ones(2, FEATURES)).sum().backward()
    assert engine.step == 0
