"""The verdict and the key figures at the top of the page."""

from dataclasses import replace
from pathlib import Path

import pytest

from comm_plan.errors import InputError, MismatchError
from comm_plan.planner import Settings, make_problem, summarise
from comm_plan.plans import Bucket, BucketTiming, EmulatedLink, IterationTimes, Timing
from comm_plan.plans.local import LocalSteps
from comm_plan.plans.run import STOCK_DDP
from comm_plan.report.page import to_page
from comm_plan.report.page.arrange import arrange
from comm_plan.report.page.cards import cards
from comm_plan.report.page.given import Forecast
from comm_plan.report.page.subject import find_subject
from comm_plan.report.page.timelines import drawn
from comm_plan.report.page.verdict import remarks, verdict
from comm_plan.tests.support import documents as build

PROFILE = build.profile([0.01, 0.02], [250_000, 1_000])
OPTIMAL = build.plan(PROFILE, iteration_s=0.04, baselines={"threshold": 0.05})
THRESHOLD = build.plan(PROFILE, solver="threshold", iteration_s=0.05)
BUCKETS = [Bucket(tensors=(tensor.name,)) for tensor in PROFILE.tensors]


def given(*documents):
    return arrange([(f"{i}.json", document) for i, document in enumerate(documents)])


def said(*documents):
    return verdict(given(*documents))


def figures(*documents):
    return {card.name: (card.value, card.note) for card in cards(given(*documents))}


def test_advice_of_a_tuning_is_taken_as_it_is():
    trials = build.trial("threshold", 0.05, 0.051), build.trial("auto", 0.02, 0.03)
    tuning = build.tuning(PROFILE, *trials, advice="use auto: 1.70x as fast")
    assert said(tuning, OPTIMAL, PROFILE) == "use auto: 1.70x as fast"
    assert figures(tuning)["speed-up"] == ("1.70x", "against threshold, measured")
    assert figures(tuning)["iteration, measured"] == ("30.0 ms", "auto")


def test_runs_are_held_against_the_run_by_ddps_buckets():
    runs = build.run(OPTIMAL, [0.045] * 3), build.run(THRESHOLD, [0.06] * 3)
    text = said(*runs)
    assert text.startswith("optimal takes 25.0 % less time than threshold (60.0 ms, me")
    assert "measured 45.0 ms an iteration, 1.12x the predicted 40.0 ms" in text
    assert figures(*runs)["speed-up"] == ("1.33x", "against threshold, measured")


def test_a_run_without_steps_is_not_said_to_predict_nothing():
    none = IterationTimes(count=0, median_s=0, p95_s=0, min_s=0)
    run = build.run(OPTIMAL, [0.045] * 3).model_copy(update={"iteration": none})
    assert run.predicted_iteration_s
    assert said(run) == "no run has measured an iteration"


def ddp(median_s):
    record = build.run(THRESHOLD, [median_s] * 3)
    unknown = dict.fromkeys(
        (
            "plan_sha256",
            "traffic",
            "timing",
            "predicted_timing",
            "predicted_iteration_s",
        )
    )
    return record.model_copy(update={"solver": STOCK_DDP, **unknown})


def test_runs_are_held_against_ddp_itself_rather_than_a_plan_of_its_buckets():
    runs = build.run(OPTIMAL, [0.045] * 3), build.run(THRESHOLD, [0.06] * 3), ddp(0.09)
    assert said(*runs).startswith(
        "optimal takes 50.0 % less time than ddp (90.0 ms, me"
    )
    assert figures(*runs)["speed-up"] == ("2.00x", "against ddp, measured")
    assert "no plan is faster than ddp" in said(*runs[:2], ddp(0.04))


@pytest.mark.parametrize("first", [0.09, 0.06])
def test_of_several_runs_by_ddp_the_fastest_is_the_baseline(first):
    runs = ddp(first), ddp(0.15 - first)
    assert "25.0 % less time than ddp" in said(build.run(OPTIMAL, [0.045] * 3), *runs)
    text = said(*runs)
    assert text.startswith("nothing is gained: no plan is faster than ddp")
    assert "takes 1.50x that" in text


@pytest.mark.parametrize("optimal_s", [0.0597, 0.06, 0.0605])
def test_a_gain_within_a_percent_is_none(optimal_s):
    runs = build.run(OPTIMAL, [optimal_s] * 3), build.run(THRESHOLD, [0.06] * 3)
    assert said(*runs).startswith("nothing is gained")


def test_a_plan_as_fast_as_its_baseline_is_not_called_faster():
    runs = build.run(OPTIMAL, [0.06] * 3), build.run(THRESHOLD, [0.06] * 3)
    assert said(*runs).startswith(
        "nothing is gained: optimal takes about the time of threshold (60.0 ms, me"
    )


def test_what_loses_is_named_with_how_much():
    runs = build.run(OPTIMAL, [0.09] * 3), build.run(THRESHOLD, [0.06] * 3)
    assert said(*runs) == (
        "nothing is gained: no plan is faster than threshold (60.0 ms, measured); "
        "optimal takes 1.50x that; measured 60.0 ms an iteration, 1.20x the predicted "
        "50.0 ms"
    )
    slow = build.plan(PROFILE, iteration_s=0.1, baselines={"threshold": 0.05})
    assert said(slow) == (
        "optimal loses: it takes 2.00x the time of threshold (50.0 ms, predicted)"
    )
    assert "optimal takes 2.00x that" in said(slow, THRESHOLD)


def test_what_is_forced_upon_a_plan_is_in_its_name():
    forced = OPTIMAL.model_copy(update={"asked": {"compressor": "fp16"}})
    assert said(forced).startswith("optimal, fp16 takes 20.0 % less time")
    bucketed = THRESHOLD.model_copy(update={"asked": {"compressor": "fp16"}})
    runs = build.run(OPTIMAL, [0.045] * 3), build.run(bucketed, [0.06] * 3)
    assert "give a run by DDP, or by a plan of solver threshold," in said(*runs)


def test_local_steps_are_said_to_be_another_algorithm():
    plan = OPTIMAL.model_copy(update={"local_steps": LocalSteps(every=4)})
    assert said(plan).startswith("optimal, 4 local steps takes 20.0 % less time")
    (remark,) = remarks(given(plan))
    assert "another algorithm" in remark


def test_a_run_without_an_iteration_has_no_measured_timeline():
    run = build.run(OPTIMAL, [0.045] * 3)
    (bucket,) = [BucketTiming(ready_s=1, start_s=1, finish_s=2)]
    timing = Timing(backward_start_s=0, compute_end_s=1, buckets=(bucket,))
    shown = run.model_copy(update={"timing": timing})
    none = shown.iteration.model_copy(update={"count": 0, "median_s": 0.0})
    assert len(drawn(given(shown))) == 1
    assert not drawn(given(shown.model_copy(update={"iteration": none})))


def test_a_run_on_another_link_than_its_plan_is_remarked():
    run = build.run(OPTIMAL, [0.045] * 3)
    link = EmulatedLink.parse("100mbit")
    elsewhere = run.model_copy(update={"emulated_link": link})
    assert not any("do not compare" in each for each in remarks(given(OPTIMAL, run)))
    assert any("do not compare" in e for e in remarks(given(OPTIMAL, elsewhere)))


@pytest.mark.parametrize(
    "change",
    [
        {"world_size": 64},
        {"backend": "mpi"},
        {"emulated_link": EmulatedLink.parse("100mbit")},
    ],
)
def test_plans_for_other_conditions_are_not_held_against_each_other(change):
    elsewhere = OPTIMAL.model_copy(update=change)
    slower = {"predicted": elsewhere.predicted.model_copy(update={"iteration_s": 0.5})}
    text = said(THRESHOLD, elsewhere.model_copy(update=slower))
    assert text.startswith("nothing is gained: no plan is faster than threshold")
    assert "takes" not in text


def test_a_difference_between_runs_of_the_same_buckets_is_noise():
    runs = build.run(OPTIMAL, [0.03] * 3), build.run(THRESHOLD, [0.06] * 3)
    text = said(OPTIMAL, THRESHOLD, *runs)
    assert "optimal has the same buckets as threshold" in text
    assert "speed-up" not in figures(OPTIMAL, THRESHOLD, *runs)


def test_the_same_buckets_after_local_steps_are_another_plan():
    local = OPTIMAL.model_copy(update={"local_steps": LocalSteps(every=4)})
    runs = build.run(local, [0.03] * 3), build.run(THRESHOLD, [0.06] * 3)
    text = said(local, THRESHOLD, *runs)
    assert text.startswith("optimal, 4 local steps takes 50.0 % less time than thresh")


@pytest.mark.parametrize(("last_s", "overlap"), [(0.05, False), (0.20, True)])
def test_runs_whose_iterations_overlap_are_remarked(last_s, overlap):
    times = [0.04, 0.04, last_s, last_s]
    runs = build.run(OPTIMAL, times, warmup=0), build.run(THRESHOLD, [0.06] * 4)
    optimal = runs[0].model_copy(
        update={"iteration": runs[0].iteration.model_copy(update={"median_s": 0.04})}
    )
    found = list(remarks(given(optimal, runs[1])))
    assert any("may be noise" in remark for remark in found) == overlap


def test_rounds_overlap_with_iterations_not_the_steps_within_them():
    """A step that ends a round takes longer than one of the baseline, its round not."""
    run = build.run(OPTIMAL, [0.001, 0.07] * 4, local_steps=LocalSteps(every=2))
    times = IterationTimes(count=4, median_s=0.0355, p95_s=0.0355, min_s=0.0355)
    run = run.model_copy(update={"iteration": times})
    assert not list(remarks(given(run, build.run(THRESHOLD, [0.06] * 4))))


@pytest.mark.parametrize(
    "change",
    [
        {"world_size": 2},
        {"backend": "mpi"},
        {"emulated_link": EmulatedLink.parse("100mbit")},
    ],
)
def test_runs_under_other_conditions_are_no_baseline(change):
    run = build.run(OPTIMAL, [0.045] * 3)
    other = build.run(THRESHOLD, [0.06] * 3)
    text = said(run, other.model_copy(update=change))
    assert "give a run by DDP, or by a plan of solver threshold," in text


def test_a_run_that_is_alone_in_its_conditions_gives_way():
    alone = build.run(THRESHOLD, [0.01] * 3, world_size=2)
    runs = build.run(OPTIMAL, [0.045] * 3), build.run(THRESHOLD, [0.06] * 3)
    assert said(alone, *runs).startswith("optimal takes 25.0 % less time than thre")


def test_beside_a_tuning_runs_tell_their_own_times():
    trials = build.trial("threshold", 0.05, 0.051), build.trial("auto", 0.02, 0.03)
    runs = [build.run(plan, [0.04, 0.06, 0.08]) for plan in (OPTIMAL, THRESHOLD)]
    found = list(remarks(given(build.tuning(PROFILE, *trials), *runs)))
    assert any(
        text.startswith("Of the runs: ") and "measured 80.0 ms" in text
        for text in found
    )
    assert any("may be noise" in text for text in found)


def test_a_given_plan_comes_before_the_forecast():
    problem = make_problem(PROFILE, build.network(), Settings())
    forecast = Forecast(summarise(problem, ["wfbp"]))
    found = replace(given(PROFILE, build.network(), OPTIMAL), forecast=forecast)
    assert verdict(found).startswith("optimal takes 20.0 % less time than threshold")
    (text,) = [text for text in remarks(found) if text.startswith("Of ")]
    assert f" on {build.network().world_size} ranks it is predicted: " in text
    assert any(forecast.comparison.verdict in text for text in remarks(found))


def test_titles_name_the_ranks_of_what_is_drawn():
    timing = build.timing((0.01, 0.01, 0.02))
    plan = build.plan(PROFILE, timing=timing, world_size=8)
    network = build.network()
    assert given(PROFILE, network).title(16) == "toy, 16 ranks, gloo"
    assert given(PROFILE, build.network(1)).title() == "toy, 1 rank, gloo"
    assert given(PROFILE, network, plan).title(16) == "toy, 8 ranks, gloo"
    run = build.run(OPTIMAL, timing=timing)
    assert given(network, plan, run).title() == "toy, 4 and 8 ranks, gloo"


def test_a_plan_without_baselines_is_held_against_the_plan_that_it_asks_for():
    plan = build.plan(PROFILE, iteration_s=0.04)
    assert "give a plan of solver threshold as well" in said(plan)
    assert "takes 20.0 % less time than threshold (50.0 ms" in said(plan, THRESHOLD)


def test_a_run_alone_is_held_against_its_prediction_only():
    text = said(build.run(OPTIMAL, [0.05] * 3))
    assert "give a run by DDP, or by a plan of solver threshold," in text
    assert "1.25x the predicted 40.0 ms" in text


def test_a_measurement_is_never_divided_by_a_prediction():
    run = build.run(OPTIMAL, [0.08] * 3)
    found = figures(OPTIMAL, run)
    assert found["speed-up"] == ("1.25x", "against threshold, predicted")
    assert found["iteration, measured"][0] == "80.0 ms"


def test_a_plan_is_held_against_its_baselines():
    assert said(OPTIMAL) == (
        "optimal takes 20.0 % less time than threshold (50.0 ms, predicted)"
    )
    assert said(THRESHOLD).startswith("nothing is gained: no plan is faster than")


def test_documents_that_predict_nothing_claim_nothing():
    assert "give a network document" in said(PROFILE)
    assert "give a profile" in said(build.network())
    assert figures(PROFILE)["gradients"] == ("1.00 MB", "2 tensors")
    assert figures(build.profile([0.1], [5]))["gradients"] == ("20 B", "1 tensor")


def test_cards_tell_traffic_and_accuracy():
    run = build.run(OPTIMAL, sent=[(1000, 10.0)], accuracies=[(1, 0.5), (3, 0.9)])
    assert figures(run)["sent per step and rank"] == (
        "10 B",
        "for 1.00 kB of gradients, 100x less",
    )
    assert figures(run)["accuracy"] == ("90.0 %", "held out, after step 3")


def test_an_accuracy_that_was_recorded_in_percent_is_not_multiplied():
    run = build.run(OPTIMAL, accuracies=[(1, 50.0), (3, 98.5)])
    assert figures(run)["accuracy"] == ("98.5", "held out, after step 3")


def test_one_rank_sends_nothing():
    plan = OPTIMAL.model_copy(update={"world_size": 1})
    assert figures(PROFILE, plan)["sent per step and rank"] == (
        "0 B",
        "for 1.00 MB of gradients, planned",
    )
    run = build.run(plan, sent=[(1000, 0.0), (1000, 0.0)])
    assert figures(run)["sent per step and rank"] == ("0 B", "for 2.00 kB of gradients")


def test_local_steps_send_once_a_round():
    plan = OPTIMAL.model_copy(update={"local_steps": LocalSteps(every=4)})
    assert figures(PROFILE, plan)["sent per step and rank"] == (
        "251 kB",
        "for 1.00 MB of gradients, 4.00x less, planned",
    )


def test_trials_that_ended_early_are_remarked():
    tuning = build.tuning(PROFILE, build.trial("threshold", 0.05), complete=False)
    assert any("ended early" in remark for remark in remarks(given(tuning)))


def test_the_same_document_twice_is_one():
    assert len(given(PROFILE, OPTIMAL, OPTIMAL).plans) == 1


def test_two_plans_of_one_solver_are_told_apart_by_their_files():
    other = build.plan(PROFILE, iteration_s=0.03)
    assert [shown.name for shown in given(OPTIMAL, other).plans] == [
        "optimal (0)",
        "optimal (1)",
    ]


def test_plans_take_the_names_and_the_order_of_trials():
    trials = [
        build.trial("a", 0.1, plan="1.json"),
        build.trial("b", 0.1, plan="0.json"),
    ]
    found = given(OPTIMAL, THRESHOLD, build.tuning(PROFILE, *trials))
    assert [shown.name for shown in found.plans] == ["a", "b"]


def tuned():
    """Return trials ``threshold`` and ``auto``, whose plans are beside the tuning."""
    return build.tuning(
        PROFILE,
        build.trial("threshold", 0.05, 0.051),
        build.trial("auto", 0.02, 0.03, plan="plan-auto.json"),
    )


AUTO = build.plan(PROFILE, *BUCKETS, solver="auto", iteration_s=0.02)
AGAIN = build.plan(PROFILE, *BUCKETS, solver="auto", iteration_s=0.025)


def trials_of(found):
    return {shown.name: shown.trial and shown.trial.name for shown in found.plans}


def test_a_trials_plan_is_the_one_beside_the_tuning():
    found = arrange(
        [
            ("solved/plan-auto.json", OPTIMAL),
            ("tuned/plan-auto.json", AUTO),
            ("tuned/tuning.json", tuned()),
        ]
    )
    assert trials_of(found) == {"auto": "auto", "optimal": None}


@pytest.mark.parametrize(
    "folder", ["tuned", "./tuned", "other/../tuned", "{cwd}/tuned"]
)
def test_a_file_is_the_same_however_it_is_named(folder):
    named = folder.format(cwd=Path.cwd())
    found = arrange([("tuned/plan-auto.json", AUTO), (f"{named}/tuning.json", tuned())])
    assert trials_of(found) == {"auto": "auto"}


def test_equal_documents_go_by_the_names_of_all_their_files():
    found = arrange(
        [
            ("demo/plan.json", AUTO),
            ("demo/tuning.json", tuned()),
            ("tuned/plan-auto.json", AUTO),
            ("tuned/tuning.json", tuned()),
        ]
    )
    assert trials_of(found) == {"auto": "auto"}


def test_the_winner_with_another_prediction_is_the_trials_plan_too():
    """``tune`` writes it as plan.json, by which people train."""
    found = arrange(
        [
            ("tuned/plan-auto.json", AUTO),
            ("tuned/plan.json", AGAIN),
            ("tuned/tuning.json", tuned()),
            ("run.json", build.run(AGAIN, [0.03] * 3, sent=[(1, 2.0)] * 2)),
        ]
    )
    assert trials_of(found) == {"auto (plan-auto)": "auto", "auto (plan)": "auto"}
    subject = find_subject(found)
    assert subject.run is found.runs[0]
    assert subject.plan.plan is AGAIN


def test_a_plan_that_another_solver_made_alike_keeps_its_name():
    lags = build.plan(PROFILE, *BUCKETS, solver="lags")
    found = arrange(
        [
            ("plan-auto.json", AUTO),
            ("plan-lags.json", lags),
            ("tuning.json", tuned()),
        ]
    )
    assert trials_of(found) == {"auto": "auto", "lags": "auto"}


@pytest.mark.parametrize(
    "change", [{"world_size": 8}, {"backend": "mpi"}, {"momentum_correction": True}]
)
def test_a_plan_that_runs_otherwise_was_not_tried(change):
    other = AUTO.model_copy(update=change)
    found = arrange(
        [("plan-auto.json", AUTO), ("plan.json", other), ("tuning.json", tuned())]
    )
    assert trials_of(found)["auto (plan)"] is None


def test_files_of_one_name_are_told_apart_by_their_folders():
    third = build.plan(PROFILE, iteration_s=0.03)
    found = arrange(
        [
            ("a/x/plan.json", OPTIMAL),
            ("b/x/plan.json", build.plan(PROFILE, iteration_s=0.02)),
            ("x/other.json", third),
        ]
    )
    names = ["optimal (a/x/plan)", "optimal (b/x/plan)", "optimal (other)"]
    assert [shown.name for shown in found.plans] == names


def test_a_second_network_is_refused():
    with pytest.raises(InputError, match=r"0\.json, 1\.json: a report holds one"):
        given(build.network(), build.network(world_size=8))


def test_documents_of_two_models_are_refused():
    other = build.profile([0.1], [5])
    with pytest.raises(MismatchError, match=r"1\.json: model fingerprint sha256:"):
        given(PROFILE, build.plan(other))


def test_no_line_of_the_head_ends_within_an_option_or_before_a_unit():
    trial = build.trial("threshold", 0.05, 0.051)
    advice = "saves 12.5 % of 3 ms; tune --objective loss says < more"
    page = to_page(given(build.tuning(PROFILE, trial, advice=advice)))
    whole = ("12.5 %", "3 ms", "--objective")
    spans = [f'<span class="whole">{each}</span>' for each in whole]
    expected = "saves {} of {}; tune {} loss says &lt; more".format(*spans)
    assert f"<h1>{expected}</h1>" in page
