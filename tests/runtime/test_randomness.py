"""The global random numbers, kept together."""

import random

import numpy as np
import pytest
import torch

from comm_plan.runtime import randomness


def drawn():
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_what_a_block_draws_is_drawn_again_after_it():
    with randomness.kept():
        within = drawn()
    assert drawn() == within


def test_a_run_on_the_cpu_begins_to_use_no_gpu(monkeypatch):
    """PyTorch would make a context on one, for which there may be no room."""

    def begin(*_):
        pytest.fail("the GPU is asked for its random numbers")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_rng_state", begin)
    with randomness.kept():
        pass


def test_the_numbers_of_a_gpu_in_use_are_kept_too(monkeypatch):
    state = torch.arange(3, dtype=torch.uint8)
    given = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", given.append)
    with randomness.kept():
        pass
    assert given == [state]
