"""The verdict says what there is to gain."""

import numpy as np
import pytest

from comm_plan.errors import InputError
from comm_plan.planner import SOLVERS, Settings, make_problem, summarise
from comm_plan.plans import LocalSteps
from comm_plan.plans.profile import SecondMoments


def _profile(build, compression=None, tensors=40):
    rng = np.random.default_rng(1)
    return build.profile(
        rng.exponential(1e-3, tensors).tolist(),
        rng.integers(1000, 400_000, tensors).tolist(),
        forward_s=0.02,
        compression=compression,
    )


def _network(build, alpha_s, beta):
    line = build.fit((0, alpha_s, beta))
    return build.network(8, allreduce=line, allgather=line)


def compared(profile, network, **settings):
    """Return all solvers side by side."""
    problem = make_problem(profile, network, Settings(**settings))
    return summarise(problem, SOLVERS)


def test_rows_are_sorted_and_multiples_of_the_bound(build):
    summary = compared(_profile(build), _network(build, 1e-4, 1e-9))
    seconds = [row.iteration_s for row in summary.rows]
    assert seconds == sorted(seconds)
    for row in summary.rows:
        assert row.of_bound == pytest.approx(row.iteration_s / summary.lower_bound_s)
        assert row.of_bound >= 1
    ran = {row.solver for row in summary.rows}
    assert ran | set(summary.left_out) == set(SOLVERS)


def test_what_cannot_run_says_why(build):
    summary = compared(_profile(build), _network(build, 1e-4, 1e-9))
    assert set(summary.left_out) == {"lags", "slgs"}
    assert "no compression costs for topk" in summary.left_out["lags"]


def test_a_fast_network_leaves_nothing_to_gain(build):
    costs = build.compression(topk=(1e-5, 1e-9))
    summary = compared(_profile(build, costs), _network(build, 0.0, 1e-12))
    assert summary.verdict.startswith("nothing to gain: DDP's buckets leave only")


def test_where_nothing_takes_time_there_is_nothing_to_gain(build):
    profile = build.profile([0.0] * 3, [1000] * 3, forward_s=0.0, update_s=0.0)
    summary = compared(profile, _network(build, 0.0, 0.0))
    assert summary.rows[0].iteration_s == 0
    assert summary.verdict.startswith(
        "nothing to gain: DDP's buckets leave only 0.00 %"
    )
    assert summary.judgement("optimal").endswith("about the time of DDP's buckets")


def test_a_bandwidth_bound_network_has_nothing_to_gain_without_compression(build):
    summary = compared(_profile(build), _network(build, 0.0, 1e-7))
    assert summary.verdict.startswith("nothing to gain: no plan is faster")


def test_a_gain_that_rounds_to_nothing_is_none(build):
    profile = build.profile([1e-3, 0.0], [300_000, 1])  # DDP makes two buckets of it
    problem = make_problem(profile, _network(build, 1e-9, 1e-8))
    summary = summarise(problem, ["optimal"])
    assert summary.row("optimal").iteration_s < summary.row("threshold").iteration_s
    assert "no plan is faster than DDP's buckets" in summary.verdict


@pytest.mark.parametrize(
    ("costs", "end"),
    [
        ({}, "which compression may save, but the profile costs none"),
        ({"topk": (1e-6, 1e-11)}, "compression may save: try --solver auto"),
    ],
)
def test_compression_is_advised_where_it_can_be_planned(build, costs, end):
    profile = _profile(build, build.compression(**costs))
    problem = make_problem(profile, _network(build, 0.0, 1e-7))
    assert summarise(problem, ["optimal"]).verdict.endswith(end)


def test_start_up_bound_networks_gain_by_merging(build):
    summary = compared(_profile(build), _network(build, 3e-3, 3e-10))
    assert summary.verdict.startswith("merge only:")


def test_slow_networks_gain_by_compression(build):
    costs = build.compression(topk=(1e-5, 1e-9))
    summary = compared(_profile(build, costs), _network(build, 1e-4, 1e-7))
    assert summary.verdict.startswith("compress:")


def test_why_auto_does_not_compress_is_said(build):
    costs = build.compression(fp16=(1e-5, 1e-9))
    profile, slow = _profile(build, costs), _network(build, 1e-4, 1e-7)
    for solvers, min_gain, said in [
        (["auto"], 0.1, False),
        (["auto"], 0.9, True),
        (["optimal"], 0.9, False),
    ]:
        problem = make_problem(profile, slow, Settings(min_gain=min_gain))
        verdict = summarise(problem, solvers).verdict
        assert (
            verdict.endswith("; auto compresses where that gains 90.0 % or more")
            == said
        )


def test_steps_without_waiting_are_a_gain_too(build):
    """However little DDP's buckets leave exposed."""
    profile = _profile(build).model_copy(update={"waiting_s": 0.02})
    network = _network(build, 0.0, 1e-12)
    summary = compared(profile, network, local_steps=LocalSteps(every=4))
    assert summary.verdict.startswith("meet less often: ")


def test_what_merging_gains_must_be_worth_while_to_be_advised(build):
    costs = build.compression(topk=(1e-5, 1e-9))
    for alpha_s in np.geomspace(1e-5, 1e-3, 30):
        summary = compared(_profile(build, costs), _network(build, alpha_s, 1e-10))
        kind, _, rest = summary.verdict.partition(": ")
        if kind == "merge only":
            assert float(rest.split(" %")[0]) >= 1


def test_an_extrapolation_is_named(build):
    summary = compared(_profile(build), _network(build, 1e-4, 1e-9), world_size=64)
    assert (summary.world_size, summary.extrapolated_from) == (64, 8)


def test_a_plan_that_loses_is_told_so(build):
    summary = compared(_profile(build), _network(build, 3e-3, 3e-10))
    text = summary.judgement("wfbp")
    assert text.startswith("this plan, wfbp, loses: ")
    assert "more time than DDP's buckets; optimal takes " in text


def test_a_plan_that_wins_is_told_so(build):
    costs = build.compression(topk=(1e-5, 1e-9))
    problem = make_problem(
        _profile(build, costs),
        _network(build, 1e-4, 1e-7),
        Settings(compressor="topk"),
    )
    text = summarise(problem, ["optimal"]).judgement("optimal")
    assert text.startswith("this plan, optimal, topk: ")
    assert text.endswith("less time than DDP's buckets")


def test_ddp_s_own_buckets_are_named_as_such(build):
    summary = compared(_profile(build), _network(build, 0.0, 1e-7))
    assert summary.judgement("threshold").startswith("this plan: DDP's buckets")


@pytest.mark.parametrize(
    ("caps_nbytes", "name"),
    [((128 << 20,), "Horovod's buckets"), ((1_500_000,), "buckets of 1.50 MB")],
)
@pytest.mark.parametrize("alpha_s", [0.0, 3e-3])
def test_other_caps_are_not_called_ddp_s(build, caps_nbytes, name, alpha_s):
    network = _network(build, alpha_s, 1e-12 if alpha_s == 0 else 3e-10)
    summary = compared(_profile(build), network, caps_nbytes=caps_nbytes)
    said = [summary.verdict, *map(summary.judgement, ("threshold", "wfbp", "optimal"))]
    assert all(name in text and "DDP" not in text for text in said)


def vgc(build, moments):
    free = build.compression(vgc=(0.0, 0.0))
    profile = _profile(build, free).model_copy(update={"second_moments": moments})
    settings = Settings(compressor="vgc")
    return make_problem(profile, _network(build, 1e-4, 1e-7), settings)


def said_of(problem):
    summary = summarise(problem, ["optimal"])
    return summary.remarks(summary.plan("optimal"))


def test_second_moments_that_are_not_exact_are_named(build):
    estimated = SecondMoments(objection="layer a mixes samples", micro_batches=4)
    remark, _, *others = said_of(vgc(build, estimated))
    assert remark.startswith("vgc will take second moments from 4 micro-batches")
    exact = SecondMoments(micro_batches=4, extra_s=1e-3)
    assert said_of(vgc(build, exact)) == others


def test_what_second_moments_take_is_in_the_times_or_said_to_be_missing(build):
    def solved(moments):
        summary = summarise(vgc(build, moments), ["optimal"])
        return summary.row("optimal").iteration_s, summary.remarks(
            summary.plan("optimal")
        )

    alone_s, (missing, *others) = solved(SecondMoments())
    assert missing.startswith("the times of vgc leave out what second moments take")
    assert solved(None) == (alone_s, [missing, *others])
    longer_s, remarks = solved(SecondMoments(extra_s=0.5))
    tensors = _profile(build).tensors
    compressed = [t.numel for t in tensors if t.layer != tensors[0].layer]
    share = sum(compressed) / sum(t.numel for t in tensors)
    assert max(alone_s, 0.5 * share) < longer_s <= alone_s + 0.5 * share
    assert missing not in remarks


def test_plans_without_second_moments_have_no_remarks(build):
    summary = compared(_profile(build), _network(build, 1e-4, 1e-9))
    assert not summary.remarks(summary.plan("optimal"))


def test_a_model_without_second_moments_is_not_planned_under_vgc(build):
    with pytest.raises(InputError, match="layer a mixes samples, and a batch of"):
        vgc(build, SecondMoments(objection="layer a mixes samples"))


def test_a_model_without_second_moments_is_planned_by_all_that_need_none(build):
    moments = SecondMoments(objection="layer a mixes samples")
    profile = _profile(build).model_copy(update={"second_moments": moments})
    summary = compared(profile, _network(build, 1e-4, 1e-9))
    assert summary.plan("optimal").is_dense


@pytest.mark.parametrize("asked", [{"accuracy": "none"}, {"allow": ("dense",)}])
def test_where_nothing_may_be_left_out_auto_had_no_choice(build, asked):
    costs = build.compression(topk=(1e-6, 1e-11))
    summary = compared(_profile(build, costs), _network(build, 1e-4, 1e-7), **asked)
    assert summary.verdict.endswith("auto had no choice: it may leave nothing out")
