"""The replay of a profile, on a clock that moves only when somebody sleeps."""

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

from comm_plan.errors import WorkloadError
from comm_plan.plans import Device, Model, Profile, TensorTiming, fingerprint
from comm_plan.profiler.timings import sparse_rows
from comm_plan.workloads import load, replay
from comm_plan.workloads.replay import DISPATCH_S, POOL_NUMEL, Replay


class FakeTime:
    """Stands in for the module ``time``."""

    def __init__(self):
        self.now_s = 0.0

    def perf_counter(self):
        return self.now_s

    def sleep(self, seconds):
        assert seconds >= 0
        self.now_s += seconds


@pytest.fixture
def fake_time(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr(replay, "time", fake)
    return fake


def make_profile(shapes, ready_s, *, dtype="float32", forward_s=0.5, tail_s=0.25):
    tensors = [
        TensorTiming(
            name=f"block{index % 2}.layer{index}.weight",
            layer=f"block{index % 2}.layer{index}",
            shape=shape,
            numel=torch.Size(shape).numel(),
            dtype=dtype,
            ready_s=at_s,
        )
        for index, (shape, at_s) in enumerate(zip(shapes, ready_s, strict=True))
    ]
    described = [(t.name, t.shape, t.dtype) for t in tensors]
    return Profile(
        model=Model(
            name="toy",
            fingerprint=fingerprint(described),
            parameters=sum(t.numel for t in tensors),
        ),
        device=Device(type="cpu", name="test"),
        batch_size=8,
        forward_s=forward_s,
        backward_s=ready_s[-1] + tail_s,
        update_s=0.125,
        tensors=tuple(tensors),
    )


def watch(model, fake_time):
    """Return a list that hooks fill with (name, moment)."""
    seen = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda _, name=name: seen.append((name, fake_time.now_s))
        )
    return seen


def test_the_replay_has_the_fingerprint_of_the_profile():
    profile = make_profile([(3, 2), (), (4,)], [1.0, 2.0, 3.0], dtype="bfloat16")
    described = [
        (name, tuple(p.shape), str(p.dtype).removeprefix("torch."))
        for name, p in Replay(profile).named_parameters()
    ]
    assert fingerprint(described) == profile.model.fingerprint


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps_s=st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=1, max_size=12))
def test_gradients_appear_in_the_recorded_order_at_the_recorded_times(
    steps_s, fake_time
):
    ready_s = [sum(steps_s[: i + 1]) for i in range(len(steps_s))]
    profile = make_profile([(2,)] * len(steps_s), ready_s)
    model = Replay(profile)
    seen = watch(model, fake_time)
    for _ in range(2):
        seen.clear()
        begin_s = fake_time.now_s
        loss = model()
        assert fake_time.now_s == begin_s + profile.forward_s
        begin_s = fake_time.now_s
        loss.backward()
        assert fake_time.now_s == begin_s + profile.backward_s
        assert seen == [(t.name, begin_s + t.ready_s) for t in profile.tensors]


def test_what_hooks_need_delays_the_rest_of_backward(fake_time):
    profile = make_profile([(2,)] * 3, [1.0, 2.0, 3.0])
    model = Replay(profile)
    first = model.get_parameter(profile.tensors[0].name)
    first.register_post_accumulate_grad_hook(lambda _: fake_time.sleep(10.0))
    seen = watch(model, fake_time)
    loss = model()
    begin_s = fake_time.now_s
    loss.backward()
    moments = [at_s - begin_s for _, at_s in seen]
    late = 10.0 - DISPATCH_S
    assert moments == pytest.approx([11.0, 2.0 + late, 3.0 + late])
    assert fake_time.now_s - begin_s == pytest.approx(profile.backward_s + late)


def test_the_update_takes_its_time_and_changes_nothing(fake_time, tmp_path):
    profile = make_profile([(2,)], [1.0])
    profile.save(tmp_path / "profile.json")
    workload = load(f"replay:{tmp_path / 'profile.json'}")
    optimizer = workload.optimizer(workload.model.parameters())
    workload.loss(workload.model, next(workload.batches(0, 1, 0, 0))).backward()
    before = [p.detach().clone() for p in workload.model.parameters()]
    begin_s = fake_time.now_s
    optimizer.step()
    assert fake_time.now_s == begin_s + profile.update_s
    assert all(
        torch.equal(a, b)
        for a, b in zip(before, workload.model.parameters(), strict=True)
    )


def test_gradients_are_writable_and_the_same_of_the_same_batch(fake_time):
    model = Replay(make_profile([(5, 3), (7,)], [1.0, 2.0]))
    steps = []
    for _ in range(2):
        model(3).backward()
        steps.append([p.grad.clone() for p in model.parameters()])
        for parameter in model.parameters():
            assert parameter.grad.is_contiguous()
            parameter.grad.zero_()  # as an engine that writes the mean in place
            parameter.grad = None
    assert all(torch.equal(a, b) for a, b in zip(*steps, strict=True))
    assert all(gradient.count_nonzero() > 0 for gradient in steps[0])


def test_every_batch_of_every_rank_has_gradients_of_its_own(fake_time, tmp_path):
    make_profile([(1000,)], [1.0]).save(tmp_path / "profile.json")
    workload = load(f"replay:{tmp_path / 'profile.json'}")
    (parameter,) = workload.model.parameters()
    seen = []
    for epoch, rank in itertools.product(range(2), range(3)):
        batches = workload.batches(rank, 3, epoch, 0)
        for batch in itertools.islice(batches, 4):
            workload.loss(workload.model, batch).backward()
            seen.append(parameter.grad.clone())
            parameter.grad = None
    correlation = torch.corrcoef(torch.stack(seen)) - torch.eye(len(seen))
    assert len(seen) == 24
    assert correlation.abs().max() < 0.2
    assert torch.stack(seen).std() == pytest.approx(1, abs=0.05)


def test_the_memory_of_gradients_is_used_again(fake_time):
    model = Replay(make_profile([(64,)], [1.0]))
    (parameter,) = model.parameters()
    addresses = set()
    for _ in range(3):
        model().backward()
        addresses.add(parameter.grad.data_ptr())
        parameter.grad = None
    assert len(addresses) == 1


def test_gradients_accumulate_as_those_of_any_model(fake_time):
    model = Replay(make_profile([(4,)], [1.0]))
    (parameter,) = model.parameters()
    model().backward()
    once = parameter.grad.clone()
    model().backward()
    model().backward()
    assert torch.allclose(parameter.grad, 3 * once)
    parameter.grad.zero_()
    model().backward()
    assert torch.equal(parameter.grad, once)


def test_a_gradient_that_was_sparse_is_so_again_with_as_many_rows(fake_time):
    profile = make_profile([(4,), (100, 3)], [1.0, 2.0])
    dense, table = profile.tensors
    sparse = table.model_copy(update={"rows": 7})
    model = Replay(profile.model_copy(update={"tensors": (dense, sparse)}))
    seen = watch(model, fake_time)
    model(2).backward()
    assert [name for name, _ in seen] == [dense.name, table.name]
    assert sparse_rows(dict(model.named_parameters())) == {table.name: 7}
    once = model.get_parameter(table.name).grad.clone()
    assert once.shape == (100, 3)
    assert once.to_dense().count_nonzero() == 7 * 3
    model(2).backward()
    twice = model.get_parameter(table.name).grad
    assert torch.equal(twice.to_dense(), 2 * once.to_dense())


def test_a_tensor_larger_than_the_pool_is_filled(fake_time):
    model = Replay(make_profile([(POOL_NUMEL + 3,)], [1.0]))
    model().backward()
    (parameter,) = model.parameters()
    assert torch.equal(parameter.grad[-3:], parameter.grad[:3])


def test_ddp_wraps_the_replay_and_sees_every_gradient_in_order(
    fake_time, one_rank_group
):
    profile = make_profile([(3,)] * 5, [1.0, 2.0, 3.0, 4.0, 5.0])
    model = DistributedDataParallel(Replay(profile))
    seen = watch(model.module, fake_time)
    for _ in range(3):
        seen.clear()
        model().backward()
        assert [name for name, _ in seen] == [t.name for t in profile.tensors]
        model.zero_grad()


def test_another_batch_size_than_the_recorded_one_is_refused(tmp_path):
    path = tmp_path / "profile.json"
    make_profile([(2,)], [1.0]).save(path)
    assert load(f"replay:{path}", batch_size=8).batch_size == 8
    with pytest.raises(WorkloadError, match="times of batch size 8, not 16"):
        load(f"replay:{path}", batch_size=16)
    with pytest.raises(WorkloadError, match=r"cannot be made with data .* takes batch"):
        load(f"replay:{path}", data="images")


@pytest.mark.parametrize("name", ["layer.", "forward"])
def test_a_name_that_no_parameter_can_have_is_refused(name):
    profile = make_profile([(2,)], [1.0])
    tensor = profile.tensors[0].model_copy(update={"name": name})
    with pytest.raises(WorkloadError, match="cannot be a module's parameter"):
        Replay(profile.model_copy(update={"tensors": (tensor,)}))
