"""Plans for those who stay with DDP or Horovod, as Python that needs no comm-plan."""

import ast
import runpy
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from comm_plan.errors import InputError
from comm_plan.plans import (
    Bf16,
    Bucket,
    Dense,
    Fp16,
    LocalSteps,
    Plan,
    PlannedModel,
    TopK,
)
from comm_plan.plans.compression.rows import Rows
from comm_plan.plans.export import to_ddp, to_horovod
from comm_plan.tests.runtime.trainings import FEATURES, net, plan_for


def exported(text, tmp_path):
    """Return the module's names, with comm-plan out of its reach."""
    assert "comm_plan" not in text
    path = tmp_path / "exported.py"
    path.write_text(text)
    return runpy.run_path(str(path))


@pytest.mark.parametrize("to_python", [to_ddp, to_horovod])
@pytest.mark.parametrize(
    "name", ['"""; exit() #', "'\\", "\N{SNOWMAN}\N{GRINNING FACE}"]
)
def test_names_are_data_in_what_is_exported(to_python, name):
    bucket = Bucket(tensors=(name,))
    model = PlannedModel(name=name, fingerprint="x")
    plan = Plan(
        solver="s", model=model, world_size=2, backend="gloo", buckets=(bucket,)
    )
    assigned = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(to_python(plan)).body
        if isinstance(node, ast.Assign) and node.targets[0].id != "MIB"
    }
    assert assigned == {"MODEL": name, "BUCKETS": [[name]]}


def step(model):
    model(torch.ones(2, FEATURES)).sum().backward()


def test_ddp_has_the_buckets_of_the_plan(one_rank_group, tmp_path):
    model = net()
    plan = plan_for(model, 1, Dense(), per_bucket=1)
    wrapped = exported(to_ddp(plan), tmp_path)["wrap"](model)
    sent = []

    def note(state, bucket):
        sent.append(bucket.buffer().numel())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    wrapped.register_comm_hook(None, note)
    step(wrapped)
    sent.clear()
    step(wrapped)  # buckets are made anew after the first
    numel = {name: p.numel() for name, p in model.named_parameters()}
    assert sent == [sum(numel[t] for t in bucket.tensors) for bucket in plan.buckets]


def test_ddp_casts_as_the_plan_says(one_rank_group, tmp_path):
    model = net()
    wrapped = exported(to_ddp(plan_for(model, 1, Fp16())), tmp_path)["wrap"](model)
    step(wrapped)
    weight = model[0].weight.grad
    assert torch.equal(weight, weight.half().float())


@pytest.mark.skipif(torch.version.cuda is not None, reason="this build has NCCL")
def test_ddp_refuses_parameters_that_it_merges_apart(tmp_path):
    """It would take the sizes for each dtype from the start of the list."""
    model = net()
    model[2].to(torch.bfloat16)
    wrap = exported(to_ddp(plan_for(model, 1)), tmp_path)["wrap"]
    with pytest.raises(ValueError, match="DDP cannot do what the plan says"):
        wrap(model)


def test_ddp_refuses_a_cast_to_bf16_where_torch_has_none(monkeypatch, tmp_path):
    """Before a group is needed, and told what to do instead."""
    wrap = exported(to_ddp(plan_for(net(), 1, Bf16())), tmp_path)["wrap"]
    for build in ("cuda", "hip"):
        monkeypatch.setattr(torch.version, build, None)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no GPU, cannot cast to bf16: export a plan"):
        wrap(net())


def test_ddp_casts_to_bf16_where_torch_can(monkeypatch, tmp_path):
    registered = []

    class Stub(nn.Module):
        def __init__(self, module, bucket_cap_mb_list):
            super().__init__()

        def register_comm_hook(self, state, hook):
            registered.append(hook)

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(nn.parallel, "DistributedDataParallel", Stub)
    exported(to_ddp(plan_for(net(), 1, Bf16())), tmp_path)["wrap"](net())
    assert registered == [default_hooks.bf16_compress_hook]


def test_another_model_is_refused(tmp_path):
    """Its gradients would be merged otherwise than planned, without a word."""
    planned = exported(to_ddp(plan_for(net(), 1)), tmp_path)["planned"]
    model = net()
    assert planned(model) == dict(model.named_parameters())
    model[0].bias.requires_grad_(False)
    model.append(nn.Linear(1, 1, bias=False))
    with pytest.raises(ValueError, match=r"they differ in 0.bias, [0-9].weight: prof"):
        planned(model)


@pytest.mark.parametrize(("spec", "cast"), [(Dense(), "none"), (Fp16(), "fp16")])
def test_horovod_gets_the_buckets_as_groups(spec, cast, monkeypatch, tmp_path):
    """Horovod cannot be installed everywhere: a stand-in notes what it is asked for."""
    asked = {}
    horovod = ModuleType("horovod.torch")
    horovod.Compression = SimpleNamespace(none="none", fp16="fp16")
    horovod.DistributedOptimizer = lambda optimizer, **options: asked.update(options)
    monkeypatch.setitem(sys.modules, "horovod", ModuleType("horovod"))
    monkeypatch.setitem(sys.modules, "horovod.torch", horovod)
    sys.modules["horovod"].torch = horovod
    model = net()
    plan = plan_for(model, 2, spec)
    module = exported(to_horovod(plan), tmp_path)
    module["wrap"](torch.optim.SGD(model.parameters(), lr=0.1), model)
    parameters = dict(model.named_parameters())
    assert asked["groups"] == [
        [parameters[name] for name in bucket.tensors] for bucket in plan.buckets
    ]
    assert asked["compression"] == cast


@pytest.mark.parametrize("to_python", [to_ddp, to_horovod])
def test_local_steps_are_refused(to_python):
    local = {"local_steps": LocalSteps(every=4)}
    with pytest.raises(InputError, match="averages every gradient"):
        to_python(plan_for(nn.Linear(4, 4), 2).model_copy(update=local))


@pytest.mark.parametrize("to_python", [to_ddp, to_horovod])
def test_a_sparse_gradient_is_refused_with_what_helps(to_python):
    """That of a layer: no solver and no compressor makes it dense."""
    sparse = plan_for(nn.Linear(4, 4), 2, Rows(), "allgather", per_bucket=1)
    with pytest.raises(InputError, match="sparse gradients, such as that of bias"):
        to_python(sparse)


def test_what_they_cannot_do_is_refused():
    model = nn.Linear(4, 4)
    sparse = plan_for(model, 2, TopK(density=0.1), "allgather")
    with pytest.raises(InputError, match="DDP cannot compress by topk"):
        to_ddp(sparse)
    with pytest.raises(InputError, match="--solver optimal, dense or --compressor"):
        to_ddp(sparse)
    with pytest.raises(InputError, match="Horovod cannot compress by bf16"):
        to_horovod(plan_for(model, 2, Bf16()))
