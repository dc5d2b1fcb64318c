"""What a plan takes over of Accelerate, and gives back."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from comm_plan.errors import InputError, MismatchError
from comm_plan.plans import TopK
from comm_plan.plans.parameters import model_fingerprint
from comm_plan.tests.runtime.trainings import FEATURES, net, plan_for

# Those of other people's libraries.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def _forgotten():
    """Let no test find what another has made of Accelerate's state."""
    from accelerate.state import AcceleratorState

    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def prepared():
    """Return a function that prepares a model for one rank by a plan, and how."""
    from accelerate import Accelerator, DistributedDataParallelKwargs

    from comm_plan.integrations.accelerate import use_plan

    def prepare(ddp=None, *, frozen=False, later=(), **options):
        handlers = [] if ddp is None else [DistributedDataParallelKwargs(**ddp)]
        accelerator = Accelerator(cpu=True, kwargs_handlers=handlers)
        model = net()
        model[0].requires_grad_(not frozen)
        plan = plan_for(model, 1, TopK(density=0.2), "allgather")
        engines = use_plan(accelerator, plan, *later, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = accelerator.prepare(model, optimizer)
        return accelerator, engines, model, optimizer

    return prepare


@pytest.mark.parametrize(
    ("ddp", "options", "unused"),
    [
        (None, {}, False),
        ({"find_unused_parameters": True}, {}, True),
        ({"find_unused_parameters": True}, {"find_unused_parameters": False}, False),
    ],
)
def test_the_engine_is_told_what_ddp_was_to_be_told(prepared, ddp, options, unused):
    _, engines, _, _ = prepared(ddp, **options)
    (engine,) = engines.values()
    assert engine._steps.setup.find_unused_parameters is unused


def test_a_backward_is_a_step_where_no_sync_is_told_to_go_on(prepared):
    accelerator, engines, model, _ = prepared()
    (engine,) = engines.values()
    with accelerator.no_sync(model):
        loss = model(torch.ones(4, FEATURES)).sum()
        with accelerator.trigger_sync_in_backward(model):
            loss.backward()
        assert engine.step == 1
        model(torch.ones(4, FEATURES)).sum().backward()
    assert engine.step == 1


def test_what_is_unfrozen_is_averaged_once_the_model_is_prepared_again(
    prepared, tmp_path
):
    accelerator, engines, model, _ = prepared(frozen=True, later=[plan_for(net(), 1)])
    model.requires_grad_(True)
    for _ in range(2):
        accelerator.prepare(model)
        (engine,) = engines.values()
    model(torch.ones(4, FEATURES)).sum().backward()
    assert engine.step == 1
    assert engine.plan.model.fingerprint == model_fingerprint(net())
    accelerator.save_state(tmp_path)
    accelerator.load_state(tmp_path)


def test_what_is_unfrozen_is_not_trained_in_silence_without_a_plan(prepared):
    accelerator, _, model, _ = prepared(frozen=True)
    model.requires_grad_(True)
    with pytest.raises(MismatchError, match=r"0\.weight of the model is missing"):
        accelerator.prepare(model)


def test_uneven_batches_are_joined_by_the_engine(prepared, monkeypatch):
    from accelerate import Accelerator

    joined = []
    monkeypatch.setattr(
        Accelerator,
        "join_uneven_inputs",
        lambda self, joinables, even_batches: joined.extend([*joinables, even_batches]),
    )
    accelerator, engines, model, optimizer = prepared()
    accelerator.join_uneven_inputs([model, optimizer], even_batches=False)
    assert joined == [*engines.values(), optimizer, False]


def test_memory_that_is_freed_holds_no_engine(prepared):
    accelerator, engines, model, optimizer = prepared()
    gone = weakref.ref(model)
    model, optimizer = accelerator.free_memory(model, optimizer)
    assert not engines
    assert not accelerator._custom_objects
    gc.collect()
    assert gone() is None


def test_what_shards_a_model_is_refused():
    from accelerate import DistributedType

    from comm_plan.integrations.accelerate import use_plan

    sharding = SimpleNamespace(distributed_type=DistributedType.FSDP)
    with pytest.raises(InputError, match="distributes by FSDP"):
        use_plan(sharding, plan_for(net(), 1))


def test_a_model_that_is_in_ddp_already_is_not_left_there_in_silence(monkeypatch):
    from accelerate import Accelerator, DistributedType

    from comm_plan.integrations.accelerate import use_plan

    class Wrapper(torch.nn.Module):
        def __init__(self, model, **options):
            super().__init__()
            self.module = model

    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", Wrapper)
    accelerator = Accelerator(cpu=True)
    accelerator.state.distributed_type = DistributedType.MULTI_CPU
    accelerator.prepare(net())
    with pytest.raises(InputError, match=r"before accelerator\.prepare"):
        use_plan(accelerator, plan_for(net(), 1))


def test_a_model_that_is_only_evaluated_may_be_prepared_before():
    from accelerate import Accelerator

    from comm_plan.integrations.accelerate import use_plan

    accelerator = Accelerator(cpu=True)
    accelerator.prepare_model(net(), evaluation_mode=True)
    engines = use_plan(accelerator, plan_for(net(), 1))
    accelerator.prepare(net())
    assert len(engines) == 1


def test_a_hook_for_ddp_is_not_ignored_in_silence(prepared):
    from accelerate.utils import DDPCommunicationHookType

    with pytest.raises(InputError, match="asks for DDP's fp16 hook, and a plan takes"):
        prepared({"comm_hook": DDPCommunicationHookType.FP16})
