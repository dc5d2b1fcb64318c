"""Every collective has all its parts, and plans and specs name no other."""

from __future__ import annotations

import subprocess
import sys

import pytest

from comm_plan.collectives.operation import Operation
from comm_plan.collectives.registry import COLLECTIVES, check_known
from comm_plan.errors import InputError
from comm_plan.plans import SPECS

WORLD_SIZES = [1, 2, 3, 8]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_has_a_closed_form_and_an_operation(name):
    collective = COLLECTIVES[name]
    assert collective.name == name
    assert issubclass(collective.operation, Operation)
    assert collective.algorithms
    for form in collective.algorithms.values():
        assert form(8).messages > 0
        assert form(8).volume > 0
        if name != "point_to_point":
            assert form(1).seconds(1e9, 1e-5, 1e-9, 1e-10) == 0


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_buffer_holds_every_message_or_one(name, world_size):
    collective = COLLECTIVES[name]
    assert collective.messages(world_size) in (1, world_size)
    nbytes = collective.buffer_nbytes(24, world_size)
    assert nbytes == 24 * collective.messages(world_size)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", ["allreduce", "allgather", "reduce_scatter"])
def test_of_a_ring_all_ranks_send_the_same(name, world_size):
    collective = COLLECTIVES[name]
    each = collective.terms(world_size).volume
    assert collective.sent_by_all(world_size) == pytest.approx(world_size * each)


def test_a_bucket_travels_by_whatever_aggregates():
    named = {name for spec in SPECS for name in spec.collectives()}
    assert named == {n for n, c in COLLECTIVES.items() if c.aggregation is not None}


def test_what_does_not_aggregate_says_so():
    with pytest.raises(TypeError, match="broadcast does not aggregate"):
        COLLECTIVES["broadcast"].aggregate(None, None)


def test_an_unknown_collective_is_refused_with_those_known():
    check_known(COLLECTIVES)
    with pytest.raises(InputError, match="'allsum' is unknown: use one of allr"):
        check_known(["allreduce", "allsum"])


def test_knowing_the_collectives_needs_no_torch():
    code = (
        "import sys, comm_plan.collectives.registry; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
