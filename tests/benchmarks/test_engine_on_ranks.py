"""The engine beside DDP: that both really run."""

import pytest

pytest.importorskip("torch")

from comm_plan.benchmarks.cnn import CNN
from comm_plan.benchmarks.engine_on_ranks import measured
from comm_plan.profiler import profile_from_speed
from comm_plan.workloads import load


@pytest.mark.slow
def test_ddp_and_the_engine_take_turns():
    profile = profile_from_speed(load(CNN), 1e11)
    ddp_s, engine_s = measured(CNN, profile, 2, rounds=1, iterations=1)
    assert len(ddp_s) == len(engine_s) == 2
    assert min(*ddp_s, *engine_s) > 0
