"""The specs are complete, consistent, and what is derived from them is current."""

from __future__ import annotations

import math
from typing import Literal

import pytest

from comm_plan.errors import InputError
from comm_plan.plans import Bucket, Plan, PlannedModel
from comm_plan.plans.compression import (
    BY_DEFAULT,
    KINDS,
    METHODS,
    SPECS,
    EveryElement,
    Qsgd,
    TernGrad,
    TopK,
    method,
)
from comm_plan.plans.compression.table import PAGE, methods_table, on_page

NUMELS = (1000, 17, 3)


def test_the_page_says_of_every_method_that_clips_that_it_does():
    _, text = PAGE.read_text(encoding="utf-8").split("methods: end")
    (said,) = [part for part in text.split("\n- ") if "`clip_norm`" in part]
    clipping = {n for n, (spec, _) in METHODS.items() if hasattr(spec, "clip_norm")}
    assert {name for name in METHODS if f"`{name}`" in said} == clipping


def test_a_spec_that_lacks_facts_is_refused_by_name():
    with pytest.raises(TypeError, match=r"Zip lacks agreed_nbytes, .*ratio"):

        class Zip(EveryElement):
            kind: Literal["zip"] = "zip"


def test_kinds_and_names_are_unique():
    assert len(KINDS) == len(SPECS)
    assert len(METHODS) == sum(len(spec.methods) for spec in SPECS)


@pytest.mark.parametrize("name", METHODS)
def test_an_example_survives_the_plan_that_holds_it(name):
    spec, collective = METHODS[name]
    plan = Plan(
        solver="none",
        model=PlannedModel(name="m", fingerprint="f"),
        world_size=2,
        backend="gloo",
        buckets=(Bucket(tensors=("a",), compressor=spec, collective=collective),),
    )
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert type(again.buckets[0].compressor) is type(spec)


@pytest.mark.parametrize("name", METHODS)
def test_what_is_sent_shrinks_and_what_is_left_out_is_a_factor(name):
    spec, collective = METHODS[name]
    assert spec.ratio >= 1
    assert (spec.ratio == 1) == spec.lossless
    nbytes = spec.planned_nbytes([(1000, 1000)], collective)
    assert nbytes <= 4 * 10**6
    assert (nbytes == 4 * 10**6) == spec.lossless


@pytest.mark.parametrize("spec", SPECS)
def test_the_facts_of_a_spec_agree(spec):
    example = spec.example()
    assert set(spec.by_default) <= set(spec.methods)
    assert set(spec.largest_world_size) <= set(spec.collectives())
    assert example.densities(3) == (example.densities(1)[0],) * 3
    assert (example.densities(1)[0] < 1) == spec.sparse
    assert (example.second_moment_at(0.1) is not None) == spec.needs_second_moments
    assert spec.at_density(0.05).densities(1)[0] == (0.05 if spec.sparse else 1.0)
    assert all(
        v.ratio <= 50 for v in example.variants(50) if len(example.variants(50)) > 1
    )


def test_lossy_methods_by_default_leave_the_density_to_nobody_but_the_planner():
    assert not any(METHODS[name][0].variable_length for name in BY_DEFAULT)


def test_ratios_order_the_methods():
    order = ["dense", "fp16", "qsgd", "terngrad", "topk"]
    ratios = [METHODS[name][0].ratio for name in order]
    assert ratios == sorted(ratios)
    assert Qsgd(bits=4).ratio == 8
    assert TopK(density=(0.5, 0.01)).ratio == pytest.approx(100)
    assert method("vgc", expected_density=0.001)[0].ratio == pytest.approx(1000)


def test_densities_by_tensor_are_sliced_and_counted():
    spec = TopK(density=(0.5, 0.1, 0.01))
    assert spec.restricted_to(1, 3).density == (0.1, 0.01)
    with pytest.raises(ValueError, match="3 densities for 2 tensors"):
        spec.densities(2)


def test_top_k_sends_tensors_of_one_dimension_whole():
    spec = TopK(density=0.01)
    assert spec.fitted([(3, 4), (5,), ()]).density == (0.01, 1.0, 1.0)
    assert spec.fitted([(3, 4)]) == spec
    assert TopK(density=(0.5, 0.1)).fitted([(5,), (6,)]).density == (0.5, 0.1)


def test_int8_limits_the_ranks_of_an_all_reduce_only():
    spec = TernGrad()
    assert spec.too_many_ranks("allreduce", 127) is None
    assert spec.too_many_ranks("allgather", 1000) is None
    assert "at most 127 ranks, here are 128" in spec.too_many_ranks("allreduce", 128)


def test_auto_tries_top_k_up_to_the_largest_ratio():
    ratios = [variant.ratio for variant in TopK.example().variants(50)]
    assert ratios == pytest.approx([10, 32, 50])


@pytest.mark.parametrize(
    ("name", "field", "text", "value"),
    [
        ("qsgd", "bits", "2", 2),
        ("vgc", "alpha", "2", 2.0),
        ("topk", "density", "1e-3", 1e-3),
    ],
)
def test_an_option_may_be_given_as_text(name, field, text, value):
    assert getattr(method(name, **{field: text})[0], field) == value


def test_an_unknown_method_is_refused_with_those_known():
    with pytest.raises(InputError, match="'zip' is unknown: use one of dense"):
        method("zip")


def test_a_packed_trit_takes_a_fifth_of_a_byte():
    packed = sum(math.ceil(numel / 5) for numel in NUMELS)
    assert TernGrad().message_nbytes(NUMELS, "allgather") == packed
    assert TernGrad().message_nbytes(NUMELS, "allreduce") == sum(NUMELS)


def test_the_page_has_the_table_of_these_methods():
    text = PAGE.read_text(encoding="utf-8")
    assert methods_table() in text
    assert on_page(text) == text
