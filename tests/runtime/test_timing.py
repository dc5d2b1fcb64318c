"""When what happens in a step, from the moments that were marked."""

import pytest
import torch

from comm_plan.runtime.timing import Moments

CPU = torch.device("cpu")


def marked(finish, *, begun=0.0):
    moments = Moments(CPU, len(finish))
    moments.begun, moments.backward, moments.backward_end = begun, 1.0, 4.0
    moments.ready = moments.start = [2.0] * len(finish)
    moments.finish = list(finish)
    return moments


def test_seconds_are_from_the_beginning_of_forward():
    told = marked([5.0], begun=0.5).seconds()
    assert told.tolist() == [0.5, 3.5, 1.5, 1.5, 4.5]


@pytest.mark.parametrize(
    ("finish", "exposed_s"), [([3.0, 7.0], 3.0), ([3.0], 0.0), ([3.0, None], None)]
)
def test_what_is_later_than_backward_is_exposed(finish, exposed_s):
    assert marked(finish, begun=None).exposed_s() == exposed_s


def test_what_was_never_reached_has_no_seconds():
    assert marked([None]).seconds() is None
    assert marked([5.0], begun=None).seconds() is None
    assert Moments(CPU, 1).exposed_s() is None


@pytest.mark.parametrize("begun", [0.5, None])
def test_a_bucket_is_busy_from_its_start_to_its_finish(begun):
    moments = marked([5.0, 7.5], begun=begun)
    moments.start[:] = [2.0, 6.0]
    assert moments.busy_s().tolist() == [3.0, 1.5]


def test_a_bucket_that_never_started_or_finished_was_not_busy():
    assert marked([None]).busy_s() is None
    moments = marked([5.0])
    moments.start[:] = [None]
    assert moments.busy_s() is None
