"""What DDP can follow of a plan, and what it cannot."""

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import comm_plan
from comm_plan.errors import InputError, MismatchError
from comm_plan.plans import Bf16, Dense, Fp16, TopK
from comm_plan.tests.runtime.trainings import net, plan_for


def test_caps_are_the_sizes_of_the_buckets():
    model = net()
    plan = plan_for(model, 2, Dense())
    caps = comm_plan.ddp_options(model, plan)["bucket_cap_mb_list"]
    nbytes = {name: p.nbytes for name, p in model.named_parameters()}
    assert [cap * 2**20 for cap in caps] == [
        sum(nbytes[name] for name in bucket.tensors) for bucket in plan.buckets
    ]


def test_casts_are_hooks():
    model = net()
    assert comm_plan.ddp_hook(plan_for(model, 2, Dense())) is None
    half = plan_for(model, 2, Fp16())
    assert comm_plan.ddp_hook(half) is default_hooks.fp16_compress_hook


def test_bf16_is_refused_where_torch_refuses_its_hook(monkeypatch):
    half = plan_for(net(), 2, Bf16())
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert comm_plan.ddp_hook(half) is default_hooks.bf16_compress_hook
    for build in ("cuda", "hip"):
        monkeypatch.setattr(torch.version, build, None)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    with pytest.raises(InputError, match="built for no GPU, cannot cast to bf16"):
        comm_plan.ddp_hook(half)


def test_what_ddp_cannot_do_is_refused():
    model = net()
    sparse = plan_for(model, 2, TopK(density=0.1), "allgather")
    with pytest.raises(InputError, match="cannot compress by topk"):
        comm_plan.ddp_options(model, sparse)
    dense, half = (plan_for(model, 2, spec) for spec in (Dense(), Fp16()))
    mixed = dense.model_copy(update={"buckets": (dense.buckets[0], half.buckets[1])})
    with pytest.raises(InputError, match="all buckets alike, the plan by dense, fp16"):
        comm_plan.ddp_hook(mixed)


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({"dtype": torch.bfloat16}, "bfloat16 on cpu, float32 on cpu"),
        ({"device": "meta"}, "float32 on cpu, float32 on meta"),
    ],
)
def test_parameters_that_ddp_merges_apart_are_refused(change, kinds):
    """DDP would take the sizes for each kind from the start of the list."""
    model = net()
    model[2].to(**change)
    with pytest.raises(InputError, match=f"several dtypes or devices, here {kinds}"):
        comm_plan.ddp_options(model, plan_for(model, 2))


def test_a_frozen_parameter_of_another_dtype_does_no_harm():
    model = net()
    model[2].to(torch.bfloat16).requires_grad_(False)
    plan = plan_for(model, 2)
    assert len(comm_plan.ddp_options(model, plan)["bucket_cap_mb_list"]) == 1


def test_a_plan_for_another_model_is_refused(tmp_path):
    plan_for(net(), 2).save(tmp_path / "plan.json")
    other = net()
    other.append(net())
    with pytest.raises(MismatchError):
        comm_plan.ddp_options(other, str(tmp_path / "plan.json"))
