"""What every compressor does is what its spec says."""

from __future__ import annotations

import math

import pytest
import torch

from comm_plan.collectives.message import message_nbytes
from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.compressors import build
from comm_plan.compressors.base import Context, Slot
from comm_plan.errors import InputError
from comm_plan.plans.compression import KINDS, METHODS, spec_class
from comm_plan.transports.local import LocalTransport

SHAPES = ((200, 200), (17,), (50, 50))
NUMELS = tuple(map(math.prod, SHAPES))
DENSITY = 0.1


class Overheard(LocalTransport):
    """One rank alone, and the bytes of what it shares."""

    reduced_nbytes = gathered_nbytes = 0

    def all_reduce(self, tensor, operation="sum"):
        self.reduced_nbytes += tensor.nbytes

    def all_gather(self, tensor):
        gathered = super().all_gather(tensor)
        self.gathered_nbytes += gathered.nbytes
        return gathered


def filled(name, ranks=None):
    """Return the compressor of a bucket of normal gradients, of one rank alone."""
    named, collective = METHODS[name]
    spec = named.at_density(DENSITY)
    context = Context(world_size=1, rank=0, device=torch.device("cpu"))
    slots = [Slot(f"t{i}", math.prod(s), s) for i, s in enumerate(SHAPES)]
    compressor = build(spec, collective, slots, context)
    generator = torch.Generator().manual_seed(0)
    moment = spec.second_moment_at(DENSITY)
    for index, numel in enumerate(NUMELS):
        gradient = torch.randn(numel, generator=generator)
        second = None if moment is None else torch.full_like(gradient, moment)
        compressor.add(index, gradient, second)
    compressor.agree(ranks or LocalTransport())
    return compressor


@pytest.mark.parametrize("name", METHODS)
def test_the_message_is_as_long_as_the_spec_says(name):
    compressor = filled(name)
    sent = message_nbytes(compressor.encode())
    planned = compressor.spec.planned_nbytes(SHAPES, compressor.collective)
    if compressor.variable_length:
        assert sent == pytest.approx(planned, rel=0.1)
    else:
        assert sent == planned


@pytest.mark.parametrize("name", METHODS)
def test_the_state_is_what_the_spec_says(name):
    compressor = filled(name)
    assert tuple(compressor.state) == compressor.spec.state


@pytest.mark.parametrize("name", METHODS)
def test_what_ranks_agree_on_is_as_long_as_the_spec_says(name):
    ranks = Overheard()
    spec = filled(name, ranks).spec
    assert ranks.reduced_nbytes == spec.agreed_nbytes * len(NUMELS)
    assert ranks.gathered_nbytes == spec.gathered_nbytes(NUMELS)


@pytest.mark.parametrize("name", METHODS)
def test_a_gradient_that_lives_in_the_bucket_is_the_mean(name):
    """Lossless ones do; others may where the bucket keeps their means."""
    compressor = filled(name)
    collective = COLLECTIVES[compressor.collective]
    collective.aggregate(LocalTransport(), compressor)
    mean = torch.empty(NUMELS[0])
    compressor.write(0, mean)
    view = compressor.view(0)
    assert view is not None or not compressor.spec.lossless
    assert view is None or view.equal(mean)


@pytest.mark.parametrize("kind", KINDS)
def test_the_facts_of_a_compressor_are_those_of_its_spec(kind):
    spec = KINDS[kind].example()
    context = Context(world_size=1, rank=0, device=torch.device("cpu"))
    compressor = build(spec, spec.default_collective(), [Slot("a", 4)], context)
    module, name = spec.implementation.split(":")
    assert type(compressor).__module__ == f"comm_plan.compressors.{module}"
    assert type(compressor).__name__ == name
    assert compressor.carries_nonfinite == spec.carries_nonfinite
    assert compressor.needs_second_moments == spec.needs_second_moments
    assert compressor.variable_length == spec.variable_length


def test_an_unknown_compressor_is_refused_with_those_known():
    with pytest.raises(InputError, match="'zip' is unknown: use one of dense"):
        spec_class("zip")
