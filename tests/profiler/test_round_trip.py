"""Measuring the replay of a profile gives that profile, on a clock that only sleeps."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from comm_plan.plans import Device, Model, Profile, TensorTiming, fingerprint
from comm_plan.profiler import contention, measure, stopwatch, turns
from comm_plan.workloads import load, replay


class FakeTime:
    """Stands in for the module ``time``."""

    def __init__(self):
        self.now_s = 0.0

    def perf_counter(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture
def fake_time(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr(replay, "time", fake)
    monkeypatch.setattr(stopwatch, "time", fake)
    monkeypatch.setattr(contention, "AT_LEAST_S", 1e-6)  # by another clock
    monkeypatch.setattr(turns, "LONG_ENOUGH_S", 0.0)


def make_profile(steps_s, forward_s, update_s):
    tensors, ready_s = [], 0.0
    for index, step_s in enumerate(steps_s):
        ready_s += step_s
        tensors.append(
            TensorTiming(
                name=f"l{index}.w",
                layer=f"l{index}",
                shape=(index + 1,),
                numel=index + 1,
                dtype="float32",
                ready_s=ready_s,
            )
        )
    prints = fingerprint((t.name, t.shape, t.dtype) for t in tensors)
    numel = sum(t.numel for t in tensors)
    return Profile(
        model=Model(name="toy", fingerprint=prints, parameters=numel),
        device=Device(type="cpu", name="test"),
        batch_size=4,
        forward_s=forward_s,
        backward_s=ready_s + 0.25,
        update_s=update_s,
        tensors=tuple(tensors),
    )


seconds = st.sampled_from([0.0, 0.25, 1.0, 1.5])  # exact in binary


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps_s=st.lists(seconds, min_size=1, max_size=8),
    forward_s=seconds,
    update_s=seconds,
)
def test_the_replay_of_a_profile_measures_as_that_profile(
    steps_s, forward_s, update_s, fake_time, tmp_path
):
    recorded = make_profile(steps_s, forward_s, update_s)
    recorded.save(tmp_path / "profile.json")
    workload = load(f"replay:{tmp_path / 'profile.json'}")
    measured = measure(workload, iterations=20, warmup=0)
    assert measured.model.fingerprint == recorded.model.fingerprint
    assert measured.tensors == recorded.tensors
    for field in ("batch_size", "forward_s", "backward_s", "update_s"):
        assert getattr(measured, field) == getattr(recorded, field)
