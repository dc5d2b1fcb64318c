"""Costs of the compressors: complete, and measured at the density they claim."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.compressors import build
from comm_plan.compressors.base import VELOCITY, Context, Slot
from comm_plan.compressors.momentum import Momentum
from comm_plan.errors import InputError
from comm_plan.plans.compression import KINDS, spec_class
from comm_plan.profiler import compression, compression_costs
from comm_plan.profiler.compression import sizes
from comm_plan.profiler.laps import Laps


class Clock:
    """Moved by nothing but a test: what this machine takes is not in the costs."""

    def __init__(self):
        self.now_s = 0.0

    def slowed(self, function, seconds):
        """Return ``function``, taking so long."""

        def slow(*arguments):
            self.now_s += seconds
            return function(*arguments)

        return slow


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(compression, "_now", lambda device: clock.now_s)
    return clock


@pytest.fixture
def slowed(monkeypatch, clock):
    """Compressors that take 8 ms to encode, 4 to decode, and 2 to write a tensor."""

    def build_slowed(*arguments):
        compressor = build(*arguments)
        for name, seconds in (("encode", 8e-3), ("decode", 4e-3), ("write", 2e-3)):
            own = getattr(compressor, name)
            setattr(compressor, name, clock.slowed(own, seconds))
        return compressor

    monkeypatch.setattr(compression, "build", build_slowed)


@pytest.mark.parametrize("kind", KINDS)
def test_every_compressor_is_measured_at_every_size_and_density(kind):
    costs = compression_costs(2000, kinds=[kind], densities=[0.1, 0.01])[kind]
    densities = [0.1, 0.01] if KINDS[kind].sparse else [1.0]
    assert {(c.numel, c.density) for c in costs} == {
        (numel, density) for numel in (1024, 2000) for density in densities
    }
    assert all(c.compress_s > 0 for c in costs)
    # Of so few elements all of decoding may be what a bucket takes whatever they are.
    assert all(c.decompress_s + c.bucket_decode_s > 0 for c in costs)


@pytest.mark.parametrize("kind", [k for k, spec in KINDS.items() if spec.sparse])
@pytest.mark.parametrize("density", [0.1, 0.01])
def test_sparse_methods_are_measured_at_the_density_they_claim(
    kind, density, monkeypatch
):
    lengths = []

    def spying(*arguments):
        compressor = real(*arguments)
        encode = compressor.encode

        def spied():
            message = encode()
            lengths.append(message[0].numel())
            return message

        compressor.encode = spied
        return compressor

    real = compression.build
    monkeypatch.setattr(compression, "build", spying)
    compression_costs(20_000, kinds=[kind], densities=[density])
    sent = lengths[-4:]  # at the largest size, with momentum where it is corrected
    expected = compression.MOST_TENSORS * 20_000 * density
    assert all(n == pytest.approx(expected, rel=0.3) for n in sent)


def test_what_a_bucket_takes_whatever_its_tensors_is_told_apart(slowed):
    costs = compression_costs(3000, kinds=["topk"], densities=[0.01])["topk"]
    assert len(costs) == 2
    for cost in costs:
        assert cost.bucket_encode_s == pytest.approx(8e-3)
        assert cost.bucket_decode_s == pytest.approx(4e-3)
        assert cost.encode_s == pytest.approx(0, abs=1e-9)
        assert cost.decompress_s == pytest.approx(2e-3)


def test_costs_are_those_of_the_slowest_host(monkeypatch, slowed):
    monkeypatch.setattr(Laps, "of_slowest", 3.0)
    (cost,) = compression_costs(1000, kinds=["topk"], densities=[0.01])["topk"]
    assert cost.decompress_s == pytest.approx(3 * 2e-3)
    assert cost.bucket_encode_s == pytest.approx(3 * 8e-3)


@given(st.integers(1, 10**9))
def test_sizes_grow_up_to_the_largest_itself(largest):
    found = sizes(largest)
    assert found[-1] == largest
    assert found == sorted(set(found))


def test_progress_counts_every_point():
    seen = []
    compression_costs(
        1500, kinds=["dense", "fp16"], progress=lambda *step: seen.append(step)
    )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_unknown_compressors_and_densities_are_refused():
    with pytest.raises(InputError, match="'zip' is unknown: use one of dense"):
        compression_costs(10, kinds=["zip"])
    with pytest.raises(InputError, match=r"density is 1.5"):
        compression_costs(10, kinds=["topk"], densities=[1.5])


@pytest.mark.parametrize("kind", KINDS)
def test_momentum_costs_what_it_takes_where_it_is_corrected(kind, monkeypatch, clock):
    slow = clock.slowed(Momentum.accelerate, 5e-3)
    monkeypatch.setattr(Momentum, "accelerate", slow)
    (cost,) = compression_costs(1000, kinds=[kind], densities=[0.01])[kind]
    context = Context(1, 0, torch.device("cpu"), momentum_of=lambda name: Momentum(0.9))
    collective = spec_class(kind).default_collective()
    spec = spec_class(kind).at_density(0.5)
    corrects = (
        VELOCITY in build(spec, collective, [Slot("a", 8, (2, 4))], context).state
    )
    taken_s = 5e-3 if corrects else 0.0
    assert cost.momentum_s + cost.momentum_encode_s == pytest.approx(taken_s)
