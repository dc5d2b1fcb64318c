"""Corrected costs predict what was measured."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comm_plan.planner import Settings, make_problem, solve
from comm_plan.planner.collective_cost import collective_curve
from comm_plan.planner.correction import Correction, stretched
from comm_plan.planner.observed import Probe, Seen, correction
from comm_plan.planner.predict import predict
from comm_plan.plans import BucketTiming, Network, Timing
from comm_plan.plans.profile import SecondMoments
from comm_plan.tests.support import documents

FACTORS = st.floats(0.1, 10.0)
SETTINGS = Settings(tolerance=0.0)
SHORT_NBYTES = (4, 16, 64, 256, 1024)


def network(latency=1.0, per_byte=1.0):
    return documents.network(
        4,
        allreduce=documents.fit((0, 1e-3 * latency, 1e-8 * per_byte)),
        allgather=documents.fit((0, 5e-4 * latency, 5e-9 * per_byte)),
    )


def model(slower=1.0):
    return documents.profile(
        [0.01 * slower, 0.02 * slower, 0.005 * slower],
        [1000, 100_000, 50_000],
        forward_s=0.03,
    )


def planned(profile, network, solver="wfbp"):
    return solve(make_problem(profile, network, SETTINGS), solver)


def corrected(plan, profile, network, timing, *probes):
    change = correction([Seen(plan, timing)], profile, network, SETTINGS, probes)
    return change, change.profile(profile), change.network(network)


@given(FACTORS, FACTORS, FACTORS)
def test_what_a_plan_takes_is_found_again(backward, latency, per_byte):
    plan = planned(model(), network())
    truth = predict(plan, model(backward), network(latency, per_byte), SETTINGS)
    change, *costs = corrected(plan, model(), network(), truth.predicted.timing)
    assert change.backward == pytest.approx(backward, rel=0.02)
    assert change.observed[0] == pytest.approx(backward)
    assert change.forward == pytest.approx(1.0)
    again = predict(plan, *costs, SETTINGS)
    assert again.predicted.iteration_s == pytest.approx(
        truth.predicted.iteration_s, rel=0.05
    )


def test_a_run_as_expected_changes_nothing():
    plan = planned(model(), network())
    change, *_ = corrected(plan, model(), network(), plan.predicted.timing)
    factors = (change.forward, change.backward, change.latency, change.per_byte)
    assert factors == pytest.approx((1.0,) * 4)
    assert change.observed == pytest.approx((1.0,) * 3)


@pytest.mark.parametrize("latency", [1.0, 3.0])
def test_sparse_gradients_are_seen_too(latency):
    profile = model()
    first, *others = profile.tensors
    sparse = first.model_copy(update={"rows": 5, "shape": (100, 10)})
    profile = profile.model_copy(update={"tensors": (sparse, *others)})
    plan = planned(profile, network())
    assert "rows" in {bucket.compressor.kind for bucket in plan.buckets}
    truth = predict(plan, profile, network(latency), SETTINGS)
    change, *_ = corrected(plan, profile, network(), truth.predicted.timing)
    assert change.latency == pytest.approx(latency, rel=0.05)


def test_all_collectives_change_with_the_link():
    plan = planned(model(), network())
    truth = predict(plan, model(), network(3.0, 3.0), SETTINGS)
    *_, after = corrected(plan, model(), network(), truth.predicted.timing)
    for name, cost in network().collectives.items():
        was, now = cost.fit.segments[0], after.collectives[name].fit.segments[0]
        assert now.alpha_s == pytest.approx(3 * was.alpha_s, rel=0.02)
        assert now.beta_s_per_byte == pytest.approx(3 * was.beta_s_per_byte, rel=0.02)


def short_messages(network):
    """Return a plan whose messages tell nothing of the bandwidth, and its timing."""
    profile = documents.profile([0.01, 0.01], [1, 1])
    plan = planned(profile, network)
    return plan, profile


def test_short_messages_tell_nothing_of_the_bandwidth():
    plan, profile = short_messages(network())
    truth = predict(plan, profile, network(1.0, 10.0), SETTINGS)
    change, *_ = corrected(plan, profile, network(), truth.predicted.timing)
    assert change.per_byte == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("per_byte", [0.1, 10.0])
def test_a_probe_tells_it(per_byte):
    plan, profile = short_messages(network())
    now = network(1.0, per_byte)
    truth = predict(plan, profile, now, SETTINGS)
    nbytes = 200_000
    probe = Probe(nbytes, now.collectives["allreduce"].fit.seconds(nbytes))
    change, *_ = corrected(plan, profile, network(), truth.predicted.timing, probe)
    assert change.per_byte == pytest.approx(per_byte, rel=0.15)
    assert change.latency == pytest.approx(1.0, rel=0.1)


def test_nothing_is_corrected_beyond_reason():
    plan = planned(model(), network())
    still = Timing(
        backward_start_s=0.0,
        compute_end_s=0.0,
        buckets=tuple(
            BucketTiming(ready_s=0.0, start_s=0.0, finish_s=1e6)
            for _ in plan.predicted.timing.buckets
        ),
    )
    change, *_ = corrected(plan, model(), network(), still)
    assert change.forward == change.backward == 1.0
    assert change.latency <= 1e3
    assert change.per_byte <= 1e3


COSTS = {"topk": (5e-3, 1e-9), "terngrad": (3e-3, 2e-9), "fp16": (0.0, 1e-10)}


def compressing(backward=1.0, **slower):
    """Return the model with compressors, some of which take so much longer."""
    costs = {
        kind: tuple(
            cost.model_copy(
                update={"compress_s": cost.compress_s * slower.get(kind, 1.0)}
            )
            for cost in of_kind
        )
        for kind, of_kind in documents.compression(**COSTS).items()
    }
    return model(backward).model_copy(update={"compression": costs})


def test_what_second_moments_take_is_corrected_with_the_method_that_needs_them():
    """They are part of what was seen of it."""
    moments = SecondMoments(extra_s=0.08)
    before = model().model_copy(
        update={
            "compression": documents.compression(vgc=(5e-3, 1e-9), topk=(5e-3, 1e-9)),
            "second_moments": moments,
        }
    )
    change = Correction(1.0, 1.0, 1.0, 1.0, (1.0,) * 3, {"vgc": 2.0, "topk": 3.0})
    after = change.profile(before)
    assert after.second_moments.extra_s == pytest.approx(0.16)
    others = replace(change, compression={"topk": 3.0}).profile(before)
    assert others.second_moments == moments


@given(st.lists(st.floats(0.5e-3, 5e-3), min_size=5, max_size=5), FACTORS, FACTORS)
def test_the_scatter_of_short_messages_is_nothing_that_bytes_add(
    medians_s, latency, per_byte
):
    fit = documents.fit((0, 1e-3, 1e-8)).fit
    measured = documents.samples(*zip(SHORT_NBYTES, medians_s, strict=True))
    cost = measured.model_copy(update={"fit": fit})
    before = documents.network(4, allreduce=cost)
    after = stretched(before, latency, per_byte)
    was, found = (collective_curve(n, "allreduce", 4) for n in (before, after))
    for nbytes in SHORT_NBYTES:
        added_s = was(nbytes) - was.startup_s
        expected_s = latency * was.startup_s + per_byte * added_s
        assert found(nbytes) == pytest.approx(expected_s)
    assert found.startup_s == pytest.approx(latency * was.startup_s)


def test_a_segment_that_begins_below_the_startup_is_stretched_from_there():
    segments = documents.fit((0, 1e-3, 1e-9), (10**6, 5e-4, 1.5e-9))
    before = Network(backend="gloo", world_size=2, collectives={"allreduce": segments})
    for latency, per_byte, expected_s in ((1, 2, 6.0e-3), (10, 1, 12.5e-3)):
        after = stretched(before, latency, per_byte)
        curve = collective_curve(after, "allreduce", 2)
        assert float(curve(2 * 10**6)) == pytest.approx(expected_s)


TIMES = st.floats(0.5, 2.0)


@settings(max_examples=30)
@given(TIMES, TIMES, TIMES, st.floats(0.0, 0.1))
def test_plans_that_compress_differently_tell_compressors_apart(
    backward, topk, terngrad, more_s
):
    """As far as they are not taken to be alike; what is longer still is waiting.

    So each is found on its own side of backward, but not how far from it.
    """
    before = compressing()
    truth = compressing(backward, topk=topk, terngrad=terngrad)
    seen = []
    for kind in (None, "topk", "terngrad"):
        asked = Settings(tolerance=0.0, compressor=kind)
        plan = solve(make_problem(before, network(), asked), "wfbp")
        taken = predict(plan, truth, network(), asked).predicted
        seen.append(Seen(plan, taken.timing, taken.iteration_s + more_s))
    change = correction(seen, before, network(), SETTINGS)
    assert change.backward == pytest.approx(backward, rel=0.15)
    if topk > 1.1 * backward > 1.2 * terngrad:
        assert change.compression["topk"] > change.compression["terngrad"]
    assert "fp16" not in change.compression
    after = change.profile(before)
    assert after.compression["fp16"] == before.compression["fp16"]
    for each in seen:
        again = predict(each.plan, after, change.network(network()), SETTINGS)
        assert again.predicted.iteration_s == pytest.approx(each.iteration_s, rel=0.1)


CODING = {"double_squeeze": (0.0, 4e-9), "dense": (0.0, 1e-9)}


def coding(slower):
    """Return a model whose encoding and decoding take so many times what they do."""
    costs = {
        kind: tuple(
            cost.model_copy(
                update={
                    "compress_s": 0.0,
                    "encode_s": slower * cost.compress_s,
                    "decompress_s": slower * cost.decompress_s,
                }
            )
            for cost in of_kind
        )
        for kind, of_kind in documents.compression(**CODING).items()
    }
    profile = documents.profile([0.002] * 6, [500_000] * 6, forward_s=0.01)
    return profile.model_copy(update={"compression": costs})


@pytest.mark.parametrize("kind", [None, "double_squeeze"])
@pytest.mark.parametrize("slower", [0.6, 1.1, 1.3, 2.0])
def test_slower_coding_is_not_taken_for_a_slower_link(kind, slower):
    """What is corrected once is as expected from then on."""
    link = documents.fit((0, 3e-4, 1e-9))
    fast = documents.network(4, allreduce=link, two_pass=link)
    method = kind and kind.replace("_", "")
    asked = Settings(tolerance=0.0, compressor=method)
    plan = solve(make_problem(coding(1.0), fast, asked), "wfbp")
    timing = predict(plan, coding(slower), fast, asked).predicted.timing
    probes = [Probe(nbytes, link.fit.seconds(nbytes)) for nbytes in (4, 300_000)]
    first, *costs = corrected(plan, coding(1.0), fast, timing, *probes)
    assert first.latency == pytest.approx(1.0, abs=0.1)
    assert first.per_byte == pytest.approx(1.0, abs=0.3)
    assert (first.coding[kind or "dense"] > 1) == (slower > 1)
    second, *_ = corrected(plan, *costs, timing, *probes)
    assert second.observed == pytest.approx((1.0,) * 3, abs=0.1)


def test_several_runs_by_a_plan_count_as_their_median():
    timings = [
        documents.timing((s, 2 * s, 3 * s), forward_s=s / 2, compute_end_s=2 * s)
        for s in (1.0, 9.0, 2.0)
    ]
    plan = planned(model(), network())
    seen = Seen.median(plan, timings, (30.0, 10.0, 20.0))
    assert seen == Seen(plan, timings[2], 20.0)


def test_waiting_cannot_be_less_than_none():
    plan = planned(model(), network())
    timing = plan.predicted.timing
    change = correction([Seen(plan, timing, 1e-3)], model(), network(), SETTINGS)
    assert change.waiting_s < 0
    assert change.profile(model()).waiting_s == 0


def test_a_correction_can_be_believed_in_part():
    observed, kinds = (1.0,) * 3, ({"topk": 16.0}, 0.02, {"topk": 4.0})
    change = Correction(4.0, 9.0, 1.0, 0.25, observed, *kinds)
    none = {"topk": 1.0}
    assert change.partly(0) == Correction(1, 1, 1, 1, observed, none, 0, none)
    assert change.partly(1) == change
    half = Correction(2, 3, 1, 0.5, observed, {"topk": 4.0}, 0.01, {"topk": 2.0})
    assert change.partly(1 / 2) == half


def test_what_sums_of_16_bits_take_longer_is_corrected_as_coding():
    summing = {"float16": 2e-9, "bfloat16": 3e-9}
    allreduce = documents.fit((0, 1e-3, 1e-8)).model_copy(update={"summing": summing})
    before = documents.network(4, allreduce=allreduce)
    as_seen = Correction(1.0, 1.0, 1.0, 1.0, (1.0,) * 3, coding={"fp16": 1.5})
    after = as_seen.network(before).collectives["allreduce"].summing
    assert after == pytest.approx({"float16": 3e-9, "bfloat16": 3e-9})


def test_a_slower_byte_is_told_by_messages_longer_than_were_measured():
    """What goes on beyond the longest that was measured is volume, not latency."""
    line = documents.fit((0, 1e-3, 1e-8))
    short = documents.samples(*((n, 1e-3 + 1e-8 * n) for n in (4, 1000, 10_000)))
    known = short.model_copy(update={"fit": line.fit})
    network = documents.network(4, allreduce=known, allgather=known)
    plan = planned(model(), network)
    slow = stretched(network, 1.0, 2.0)
    timing = predict(plan, model(), slow, SETTINGS).predicted.timing
    change, *_ = corrected(plan, model(), network, timing)
    assert change.latency == pytest.approx(1.0, abs=0.05)
    assert change.per_byte == pytest.approx(2.0, abs=0.05)
