"""What DDP can follow of a plan, and what it cannot."""

import pytest
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import comm_plan
from comm_plan.errors import InputError, MismatchError
from comm_plan.plans import Dense, Fp16, TopK
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


def test_what_ddp_cannot_do_is_refused():
    model = net()
    sparse = plan_for(model, 2, TopK(density=0.1), "allgather")
    with pytest.raises(InputError, match="cannot compress by topk"):
        comm_plan.ddp_options(model, sparse)
    dense, half = (plan_for(model, 2, spec) for spec in (Dense(), Fp16()))
    mixed = dense.model_copy(update={"buckets": (dense.buckets[0], half.buckets[1])})
    with pytest.raises(InputError, match="all buckets alike, the plan by dense, fp16"):
        comm_plan.ddp_hook(mixed)


def test_a_plan_for_another_model_is_refused(tmp_path):
    plan_for(net(), 2).save(tmp_path / "plan.json")
    other = net()
    other.append(net())
    with pytest.raises(MismatchError):
        comm_plan.ddp_options(other, str(tmp_path / "plan.json"))
