"""What must hold for every compressor with every collective that can carry it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.plans import (
    Bf16,
    Dense,
    DoubleSqueeze,
    Fp16,
    Hybrid,
    ModelTopK,
    PartitionTopK,
    PowerSgd,
    Qsgd,
    SparDL,
    Strom,
    TernGrad,
    TopK,
    Vgc,
)
from comm_plan.plans.compression import KINDS, RESIDUAL
from comm_plan.tests.support.engines import ANYWHERE
from comm_plan.tests.support.harness import real_ranks, run_ranks
from comm_plan.tests.support.rank_programs import Training, mean_of_repetitions, train

SPECS = {
    "dense": Dense(),
    "fp16": Fp16(),
    "bf16": Bf16(),
    "terngrad": TernGrad(),
    "terngrad unclipped": TernGrad(clip=0),
    "topk": TopK(density=0.2),
    "topk of almost nothing": TopK(density=0.001),
    "topk of everything": TopK(density=1.0),
    "model topk": ModelTopK(density=0.2),
    "partition topk": PartitionTopK(density=0.2),
    "partition topk of almost nothing": PartitionTopK(density=0.001),
    "partition topk of everything": PartitionTopK(density=1.0),
    "spardl": SparDL(density=0.2),
    "spardl of almost nothing": SparDL(density=0.001),
    "spardl of everything": SparDL(density=1.0),
    "vgc": Vgc(),
    "strom": Strom(tau=0.5),
    "hybrid": Hybrid(tau=0.5),
    "qsgd 2": Qsgd(bits=2),
    "qsgd 3": Qsgd(bits=3),
    "qsgd 4": Qsgd(bits=4),
    "doublesqueeze 3": DoubleSqueeze(bits=3, group_numel=32),
    "doublesqueeze 4": DoubleSqueeze(bits=4),
    "doublesqueeze 8": DoubleSqueeze(bits=8, group_numel=64),
    "powersgd 1": PowerSgd(rank=1),
    "powersgd 3": PowerSgd(rank=3),
}
CARRIED = [
    pytest.param(spec, collective, id=f"{name} by {collective}")
    for name, spec in SPECS.items()
    for collective in spec.collectives()
]
BIASED = {spec.kind for spec in SPECS.values() if RESIDUAL in spec.state}
UNBIASED = [case for case in CARRIED if case.values[0].kind in ("terngrad", "qsgd")]
UNIT_ROUNDOFF = {"dense": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}

SHAPES = st.one_of(
    st.tuples(st.integers(1, 60)),
    st.tuples(st.integers(3, 20), st.integers(3, 20)),
    st.tuples(st.integers(2, 12), st.integers(1, 3), st.integers(1, 5)),
)


@st.composite
def trainings(draw, spec, collective):
    """Draw a world size and some steps of a bucket of a few tensors."""
    training = Training(
        spec,
        collective,
        shapes=draw(st.lists(SHAPES, min_size=1, max_size=4)),
        undone=draw(st.lists(st.booleans(), min_size=1, max_size=4)),
        seed=draw(st.integers(0, 1000)),
    )
    return draw(st.integers(1, 9)), training


def check(run, world_size, training):
    steps = zip(*run(world_size, train, training), strict=True)
    for ranks, undone in zip(steps, training.undone, strict=True):
        check_equal_on_all_ranks(ranks)
        check_nbytes(ranks, training)
        if training.spec.kind in BIASED:
            check_conserved(ranks, training.spec.kind == "powersgd")
        elif training.spec.kind in UNIT_ROUNDOFF and not undone:
            check_mean(ranks, UNIT_ROUNDOFF[training.spec.kind])


def total(tensors):
    return torch.stack(list(tensors)).double().sum(0)


def check_equal_on_all_ranks(ranks):
    for step in ranks:
        assert torch.equal(step.applied, ranks[0].applied)
        assert step.applied.isfinite().all()


def check_conserved(ranks, mixes_elements):
    """Gradients + old residuals = P x applied mean + new residuals.

    In a step that is undone nothing is applied, so all of it is in the new residuals.
    Products of matrices round to the largest of their elements.
    """
    before = total(x for s in ranks for x in (s.gradient, s.residual_before))
    after = total(x for s in ranks for x in (s.applied, s.residual_after))
    scale = total(x.abs() for s in ranks for x in (s.gradient, s.residual_before))
    if mixes_elements:
        scale = scale.max()
    assert ((before - after).abs() <= 1e-5 * scale + 1e-30).all()


def check_mean(ranks, roundoff):
    """Casting rounds once, each of P - 1 sums once, the division and its cast twice."""
    world_size = len(ranks)
    error = (ranks[0].applied - total(s.gradient for s in ranks) / world_size).abs()
    scale = total(s.gradient.abs() for s in ranks) / world_size
    assert (error <= (world_size + 3) * roundoff * scale + 1e-6).all()


def check_nbytes(ranks, training):
    """What the aggregation says it sent is the message, as long as planned."""
    for step in ranks:
        header = 0
        if training.spec.kind in ("vgc", "strom", "hybrid"):
            header = 8 * (step.message_tensors - 1)
        elif (
            training.spec.kind != "powersgd"
        ):  # whose steps are long and short by turns
            planned = training.spec.planned_nbytes(training.shapes, training.collective)
            assert step.message_nbytes == planned
        assert step.contributed_nbytes == step.message_nbytes + header


def test_every_compressor_is_covered():
    assert {spec.kind for spec in SPECS.values()} == set(KINDS)


@pytest.mark.parametrize(("spec", "collective"), CARRIED)
@given(st.data())
@settings(max_examples=25)
def test_invariants_hold(spec, collective, data):
    check(run_ranks, *data.draw(trainings(spec, collective)))


def lost_share(spec, collective, world_size):
    """Return the share of the applied gradient's magnitude that is lost in 3 steps."""
    training = Training(spec, collective, ((500,),), undone=(False,) * 3, seed=7)
    lost, applied = 0.0, 0.0
    for ranks in zip(*run_ranks(world_size, train, training), strict=True):
        before = total(x for s in ranks for x in (s.gradient, s.residual_before))
        after = total(x for s in ranks for x in (s.applied, s.residual_after))
        lost += float((before - after).abs().sum())
        applied += float(total(s.applied.abs() for s in ranks).sum())
    return lost / applied


@pytest.mark.parametrize("make", [TopK, ModelTopK])
def test_what_gtopk_puts_back_as_printed_loses_more_with_more_ranks(make):
    printed = make(density=0.1, as_printed=True)
    shares = [lost_share(printed, "gtopk", ranks) for ranks in (2, 4, 16)]
    assert shares[0] < 1e-5 < 0.01 < shares[1] < shares[2]
    assert lost_share(make(density=0.1), "gtopk", 16) < 1e-5


def test_the_reset_of_vgc_as_printed_loses_what_rounding_takes():
    assert lost_share(Vgc(as_printed=True), "allgather", 4) > 0.05
    assert lost_share(Vgc(), "allgather", 4) < 1e-5


@pytest.mark.parametrize("engine", ANYWHERE)
@pytest.mark.parametrize(("spec", "collective"), CARRIED)
@given(st.data())
@settings(max_examples=5)
def test_invariants_hold_on_real_engines(engine, spec, collective, data):
    check(real_ranks(engine).run, *data.draw(trainings(spec, collective)))


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize(("spec", "collective"), UNBIASED)
def test_the_mean_of_many_draws_is_the_gradient(spec, collective, world_size):
    """Within six standard deviations; the gradients are too even to be clipped."""
    times, numels = 400, (30, 12)
    training = Training(spec, collective, ((30,), (12,)), undone=(), seed=5)
    generator = torch.Generator().manual_seed(world_size)
    signs = torch.randint(2, (world_size, sum(numels)), generator=generator) * 2 - 1
    sizes = 0.2 + 0.8 * torch.rand(world_size, sum(numels), generator=generator)
    gradients = (signs * sizes).unbind()
    (mean, *_) = run_ranks(world_size, mean_of_repetitions, training, gradients, times)
    variance = total(step_variance(spec, g, numels) for g in gradients)
    deviation = (variance / times).sqrt() / world_size
    error = (mean - total(gradients) / world_size).abs()
    assert (error <= 6 * deviation + 1e-6).all()
    assert (error > 0.05 * deviation).any(), "nothing was drawn"


def step_variance(spec, gradient, numels):
    """Bound the variance of rounding to steps of width w at random: |g| w, w^2 / 4.

    The width is the scaler (at most 1 here) for TernGrad and the largest magnitude over
    the number of levels above zero for QSGD.
    """
    parts = []
    for part in torch.split(gradient, list(numels)):
        width = torch.tensor(1.0)
        if spec.kind == "qsgd":
            width = part.abs().max() / (2 ** (spec.bits - 1) - 1)
        parts.append(torch.minimum(part.abs() * width, width**2 / 4))
    return torch.cat(parts)
