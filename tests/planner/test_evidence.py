"""What is known of methods' accuracy decides what auto may use."""

from __future__ import annotations

import pytest

from comm_plan.planner import SOLVERS, Settings, evidence, make_problem, solve
from comm_plan.planner.evidence import Evidence, Task, largest_ratio, rests_on
from comm_plan.plans import CompressionCost
from comm_plan.plans.compression import METHODS
from comm_plan.plans.profile import Sent
from comm_plan.tests.support import documents


def task(within, name="digits"):
    return Task(
        name=name,
        metric="accuracy",
        steps=2000,
        seeds=3,
        difference=0.001 if within else -0.02,
        within_noise=within,
        ratio=40.0,
    )


def both(*within):
    names = ("digits", "char-lm")
    return tuple(task(each, name) for each, name in zip(within, names, strict=True))


@pytest.fixture
def known(monkeypatch):
    """Top-k at 20x in both tasks, at 100x tried in one; TernGrad in one of two.

    Top-k at 50x in both with remedies; QSGD in both, but at half of it in one.
    """
    found = (
        Evidence(method="topk", ratio=20, tasks=both(True, True)),
        Evidence(method="topk", ratio=50, remedies="care", tasks=both(True, True)),
        Evidence(method="topk", ratio=100, tasks=both(True, True)[:1]),
        Evidence(method="topk", ratio=200, tasks=(task(False),)),
        Evidence(method="terngrad", ratio=20, tasks=both(True, False)),
        Evidence(method="spardl", ratio=9, remedies="care", tasks=both(True, True)),
        Evidence(method="qsgd", ratio=4, tasks=both(True, True)),
        Evidence(method="qsgd", ratio=16, tasks=both(True, True)),
        Evidence(method="qsgd", ratio=8, tasks=both(True, False)),
        Evidence(method="qsgd", ratio=32, tasks=both(False, False)),
    )
    monkeypatch.setattr(evidence, "measured", lambda: found)
    return found


def test_a_method_may_leave_out_what_was_within_noise_in_every_task(known):
    assert largest_ratio("topk", "noise", 1000.0) == 20
    assert largest_ratio("topk", "noise", 10.0) == 10
    assert largest_ratio("terngrad", "noise", 1000.0) == 1
    assert largest_ratio("strom", "noise", 1000.0) == 1
    for method in ("topk", "terngrad", "strom"):
        assert largest_ratio(method, "loss", 1000.0) == 1000
        assert largest_ratio(method, "none", 1000.0) == 1


def test_what_went_well_with_remedies_says_nothing_of_plans_without(known):
    assert largest_ratio("spardl", "noise", 1000.0) == 1


def test_what_lost_at_a_gentler_ratio_is_not_trusted_above_it(known):
    assert largest_ratio("qsgd", "noise", 1000.0) == 4
    assert rests_on("qsgd", 10.0).startswith("qsgd up to 16x: ")
    assert "; within noise; but at 8x: " in rests_on("qsgd", 10.0)
    assert rests_on("qsgd", 10.0).endswith("; beyond noise on char-lm")
    assert "but at" not in rests_on("qsgd", 20.0)
    assert rests_on("qsgd", 6.0).startswith("qsgd up to 8x: ")
    assert rests_on("qsgd", 3.0).endswith("; within noise")


def test_what_is_allowed_by_name_is_allowed_whatever_is_known(known):
    settings = Settings(allow=("terngrad",))
    assert settings.ratio_limit("terngrad") == settings.max_ratio
    assert settings.ratio_limit("topk") == 1
    assert settings.kinds() == ("dense", "terngrad")


def test_a_sentence_says_what_it_rests_on(known):
    assert rests_on("topk", 15.0) == (
        "topk up to 20x: +0.10 points of accuracy on digits (2000 steps, 3 seeds), "
        "+0.10 points of accuracy on char-lm (2000 steps, 3 seeds); within noise"
    )
    assert rests_on("topk", 50.0).startswith("topk up to 100x: ")
    assert rests_on("spardl", 9.0).startswith("spardl up to 9x, with care: ")
    assert rests_on("topk", 150.0).endswith(
        "; beyond noise on digits, not tried on char-lm"
    )
    assert rests_on("topk", 999.0).startswith("topk at 999x: not measured; at 200x: ")
    assert "on char-lm (2000 steps, 3 seeds); beyond noise" in rests_on(
        "terngrad", 20.0
    )
    assert rests_on("strom", 9.0) == "strom: its accuracy was not measured"


def test_what_was_not_measured_rests_on_trainings_without_remedies(monkeypatch):
    found = (
        Evidence(method="topk", ratio=100, tasks=both(True, False)),
        Evidence(method="topk", ratio=100, remedies="care", tasks=(task(True),)),
        Evidence(method="vgc", ratio=100, remedies="care", tasks=both(True, True)),
    )
    monkeypatch.setattr(evidence, "measured", lambda: found)
    assert rests_on("topk", 999.0).endswith("; beyond noise on char-lm")
    assert "; at 100x, with care: " in rests_on("vgc", 999.0)


def test_a_plan_that_corrects_momentum_says_that_the_evidence_does_not(known, build):
    other = "Momentum was not corrected there, as it is here"
    assert rests_on("topk", 15.0, momentum_correction=True).endswith(other)
    assert other not in rests_on("spardl", 9.0, momentum_correction=True)  # remedies
    for corrected in (False, True):
        problem = slow(build, momentum_correction=corrected)
        (sentence,) = solve(problem, "auto").evidence
        assert (other in sentence) == corrected


def slow(build, **settings):
    """Return a problem in which compression pays."""
    profile = build.profile(
        [2e-3] * 6,
        [500_000] * 6,
        compression=build.compression(topk=(1e-5, 1e-9), terngrad=(1e-5, 1e-9)),
    )
    network = build.network(
        4, allreduce=build.fit((0, 1e-4, 1e-7)), allgather=build.fit((0, 1e-4, 1e-7))
    )
    return make_problem(profile, network, Settings(**settings))


def test_auto_keeps_to_it_and_the_plan_says_so(build, known):
    gentle = SOLVERS["auto"](slow(build))
    kinds = {option.compressor.kind for option in gentle.options}
    assert "topk" in kinds
    assert "terngrad" not in kinds
    assert max(option.ratio for option in gentle.options) <= 20.1
    plan = solve(slow(build), "auto")
    assert all(sentence.startswith("topk up to ") for sentence in plan.evidence)
    assert len(plan.evidence) == 1
    harsh = SOLVERS["auto"](slow(build, accuracy="loss"))
    assert max(option.ratio for option in harsh.options) > 20.1
    assert solve(slow(build, accuracy="none"), "auto").is_dense
    assert solve(slow(build), "optimal").evidence == ()


def test_the_evidence_that_is_there_is_of_methods_that_are_there():
    assert evidence.measured()
    for found in evidence.measured():
        assert found.method in METHODS
        assert found.tasks
        assert found.ratio > 1


def test_auto_may_use_what_the_page_on_accuracy_says():
    limits = {name: largest_ratio(name, "noise", 1000.0) for name in METHODS}
    assert {name: limit for name, limit in limits.items() if limit > 1} == {
        "fp16": 2,
        "bf16": 2,
        "qsgd": 8,
        "doublesqueeze": 32 / 3,
        "topk": 20,
    }


@pytest.mark.parametrize("density", [1e-9, 0.5])
def test_what_the_data_decides_rests_on_what_was_trained_with_its_options(density):
    """However much or little a model was seen to send by them."""
    costs = (CompressionCost(numel=10_000, compress_s=1e-4, decompress_s=1e-4),)
    profile = documents.profile([0.01], [10_000], compression={"strom": costs})
    profile = profile.model_copy(update={"sent": {"strom": Sent(density=density)}})
    cost = documents.fit((0, 1e-3, 1e-8))
    network = documents.network(4, allreduce=cost, allgather=cost)
    for settings, solver in (
        (Settings(compressor="strom"), "single"),
        (Settings(allow=("strom",)), "auto"),
    ):
        plan = solve(make_problem(profile, network, settings), solver)
        kinds = {bucket.compressor.kind for bucket in plan.buckets}
        if solver == "single":
            assert kinds == {"strom"}
            assert any("strom up to 100x" in known for known in plan.evidence)
        else:
            assert kinds <= {"dense", "strom"}
