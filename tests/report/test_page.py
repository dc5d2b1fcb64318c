"""What the page shows of which documents."""

import math
import re
from dataclasses import replace

import pytest

from comm_plan import units
from comm_plan.planner import Settings, make_problem, summarise
from comm_plan.plans import (
    Bucket,
    Curve,
    EmulatedLink,
    IterationTimes,
    Replan,
    Round,
    TopK,
)
from comm_plan.plans.compression.rows import Rows
from comm_plan.plans.local import LocalSteps
from comm_plan.report.page import to_page
from comm_plan.report.page.arrange import arrange
from comm_plan.report.page.axes import linear
from comm_plan.report.page.blocks import Figure
from comm_plan.report.page.chart import Point, Series, chart
from comm_plan.report.page.drift import drift
from comm_plan.report.page.given import Forecast
from comm_plan.report.page.learning import learning
from comm_plan.report.page.sizes import plan_sizes
from comm_plan.report.page.traffic import traffic
from comm_plan.tests.support import documents as build
from comm_plan.tests.support.page import Page

PROFILE = build.profile([0.01, 0.02], [250_000, 1_000], forward_s=0.005, update_s=0.001)
NETWORK = build.network(
    allreduce=build.samples((1024, 1.5e-3), (1048576, 0.0125)),
    allgather=build.fit((0, 1e-3, 2e-8), (4096, 0.0, 3e-8)),
)
NAMES = [tensor.name for tensor in PROFILE.tensors]
TIMING = build.timing(
    (0.015, 0.015, 0.028), (0.035, 0.035, 0.0365), forward_s=0.005, compute_end_s=0.035
)
PLAN = build.plan(
    PROFILE,
    Bucket(tensors=(NAMES[0],), compressor=TopK(density=0.01), collective="allgather"),
    Bucket(tensors=(NAMES[1],)),
    iteration_s=0.0375,
    baselines={"threshold": 0.045},
    timing=TIMING,
)
MEASURED = build.timing(
    (0.016, 0.016, 0.042), (0.036, 0.042, 0.0435), forward_s=0.006, compute_end_s=0.036
)
RUN = build.run(
    PLAN,
    [0.09, 0.041, 0.043, 0.044, 0.0475],
    losses=[2.0, 1.5, None, 1.25, 1.125],
    accuracies=[(2, 0.5), (5, 0.8125)],
    sent=[(1_000_000, 20_000.0), (4_000, 4_000.0)],
    timing=MEASURED,
)
TUNING = build.tuning(
    PROFILE,
    build.trial("threshold", 0.045, 0.0512),
    build.trial("single", 0.0613),
    build.trial("optimal", 0.0375, 0.0434),
    not_tried={"lags": "needs the cost of topk"},
)
DOCUMENTS = {
    "profile": PROFILE,
    "network": NETWORK,
    "plan": PLAN,
    "run": RUN,
    "tuning": TUNING,
}


def given(*names, **more):
    chosen = {name: DOCUMENTS[name] for name in names} | more
    return arrange([(f"{name}.json", d) for name, d in chosen.items()])


def page(*names, **more):
    return Page(to_page(given(*names, **more)))


@pytest.fixture(scope="module")
def foretold():
    def summary(ranks):
        problem = make_problem(PROFILE, NETWORK, Settings(world_size=ranks))
        return summarise(problem, ["optimal"])

    forecast = Forecast(summary(4), tuple(map(summary, (2, 4, 8))))
    return replace(given("profile", "network"), forecast=forecast)


@pytest.mark.parametrize(
    ("names", "sections"),
    [
        (["profile"], ["layers"]),
        (["network"], ["network"]),
        (["plan"], ["timelines", "buckets"]),
        (["run"], ["timelines", "runs", "buckets"]),
        (["tuning"], ["tuning"]),
        (["run", "plan"], ["timelines", "runs", "buckets"]),
        (
            list(DOCUMENTS),
            ["tuning", "timelines", "runs", "buckets", "layers", "network"],
        ),
    ],
)
def test_sections_are_those_of_the_documents(names, sections):
    assert page(*names).sections == [*sections, "documents"]


def test_a_forecast_brings_solvers_and_scaling(foretold):
    found = Page(to_page(foretold))
    assert {"solvers", "scaling"} <= set(found.sections)
    for summary in foretold.forecast.scaling:
        for row in summary.rows:
            assert row.iteration_s in found.values()
    assert foretold.forecast.comparison.verdict in found.text


def test_scaling_that_cannot_be_computed_says_why(foretold):
    reason = "allreduce by tree was not measured"
    forecast = replace(foretold.forecast, scaling=(), no_scaling=reason)
    found = Page(to_page(replace(foretold, forecast=forecast)))
    assert f"Not shown: {reason}" in found.text


def test_a_plan_and_a_run_by_hand_are_enough():
    plan = build.plan(PROFILE, predicted=None)
    run = build.run(plan, [0.05], warmup=0).model_copy(update={"iterations_s": ()})
    found = page(plan=plan, run=run)
    assert found.sections == ["runs", "buckets", "documents"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_page_is_well_formed_and_loads_nothing(name):
    source = to_page(given(name))
    assert Page(source).left_open == []
    assert not re.search(r"@import|<link|src=|href=\"[^#]", source)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg\")", source)
    assert "url(" not in source.replace("url(#hatch)", "")


def test_names_are_text_wherever_they_stand():
    wild = "<b onclick='x'>\"&amp;"
    profile = build.profile_of([build.tensor(wild, (3,), 0.01, layer=wild)])
    plan = build.plan(profile, solver=wild, timing=build.timing((0.01, 0.01, 0.02)))
    run = build.run(plan, timing=build.timing((0.01, 0.01, 0.02)), workload=wild)
    tuning = build.tuning(profile, build.trial(wild, 0.1, 0.2), advice=wild)
    network = build.network(**{wild: build.samples((8, 1e-3))})
    source = to_page(
        given(profile=profile, network=network, plan=plan, run=run, tuning=tuning)
    )
    assert wild not in source
    found = Page(source)
    assert wild in found.text
    assert not [tag for tag, _ in found.elements if tag == "b"]
    assert any(wild in tip for tip in found.tips())


def test_predicted_stands_above_measured():
    text = page("run", "plan").text
    assert text.index("optimal: predicted") < text.index("optimal: measured")
    exposed = units.seconds(PLAN.predicted.exposed_s)
    assert f"37.5 ms an iteration, {exposed} exposed" in text
    assert "44.0 ms an iteration, 7.50 ms exposed" in text


def test_spans_that_are_too_narrow_for_edges_have_none():
    profile = build.profile([1e-5] * 1000, [10] * 1000, forward_s=0.01)
    buckets = [Bucket(tensors=(tensor.name,)) for tensor in profile.tensors]
    moments = [(0.01 + i * 1e-5, 0.01 + i * 1e-5, 0.01 + i * 1e-5) for i in range(1000)]
    timing = build.timing(*moments, forward_s=0.01)
    source = to_page(arrange([("plan", build.plan(profile, *buckets, timing=timing))]))
    spans = re.findall(r'class="(span[^"]*)"', source)
    assert spans.count("span thin") > 900
    assert "span" in spans


def test_buckets_show_sizes_and_moments_of_both():
    values = page("profile", "run", "plan").values()
    for timing in (TIMING, MEASURED):
        for bucket in timing.buckets:
            assert {bucket.ready_s, bucket.start_s, bucket.finish_s} <= set(values)
    assert {1_000_000, 20_000, 4_000, 50} <= set(values)


def test_a_plan_alone_is_weighed_by_its_compressors():
    message = PLAN.buckets[0].compressor.message_nbytes([250_000], "allgather")
    values = page("profile", "plan").values()
    assert {1_000_000, message} <= set(values)


def test_an_embedding_is_weighed_by_the_rows_of_a_batch():
    table = build.tensor("table", (100_000, 98)).model_copy(update={"rows": 500})
    profile = build.profile_of([table])
    plan = build.plan(
        profile,
        Bucket(tensors=("table",), compressor=Rows(), collective="allgather"),
    )
    (size,) = plan_sizes(plan, profile)
    assert (size.dense, size.message) == (39_200_000, 500 * (8 + 4 * 98))


def test_a_layer_shows_what_is_sent_of_it():
    found = page("profile", "plan")
    assert "sent by optimal" in found.text
    assert 0.01 in found.values()


def test_a_sample_shows_its_spread_and_bandwidth():
    (tip, *_) = [tip for tip in page("network").tips() if tip.startswith("1 MiB: ")]
    assert "12.5 ms" in tip
    assert "bus bandwidth 126 MB/s" in tip


def test_a_fit_without_samples_is_drawn():
    found = page(network=build.network())
    assert any(tip.startswith("fit at 64 MiB: 672 ms") for tip in found.tips())


def test_a_tuning_shows_every_trial_and_what_was_not_tried():
    found = page("tuning")
    for trial in TUNING.trials:
        assert trial.predicted_s in found.values()
    assert {0.0512, 0.0434} <= set(found.values())
    assert "lags needs the cost of topk" in found.text
    marks = [a for a in found.of_class("shape") if "data-tip" in a]
    assert len(marks) == 5
    assert sum("hollow" in a["class"] for a in marks) == 3


def test_the_spread_of_a_trial_is_on_the_clock_of_its_mark():
    last = Round(iterations=20, median_s=0.04, p95_s=0.05)
    trial = build.trial("optimal", 0.1, 0.08).model_copy(update={"rounds": (last,)})
    found = page(tuning=build.tuning(PROFILE, trial))
    (bar,) = found.of_class("bar")
    predicted, measured = (a for a in found.of_class("shape") if "data-tip" in a)
    assert bar["x1"] == measured["cx"]
    assert bar["x2"] == predicted["cx"]


def test_a_training_that_diverged_hides_no_other():
    curves = [
        Curve(seed=seed, seconds=(1.0, 2.0), losses=(2.0, last))
        for seed, last in enumerate([1.5, 1.797e308])
    ]
    trial = build.trial("auto", 0.1, 0.1, curves)
    found = page(tuning=build.tuning(PROFILE, trial, objective="loss"))
    assert "auto, seed 0\n1.5 after 2.00 s" in found.tips()
    assert not [tip for tip in found.tips() if tip.startswith("auto, seed 1\n1.797e")]
    assert "Diverged: auto, seed 1." in found.text
    assert "mean loss over a tenth of the dense plan's iterations" in found.text
    assert "inf" not in found.text.split()


def test_a_dozen_series_look_different():
    points = Point(0.0, 0.0, ""), Point(1.0, 1.0, "")
    axis = linear("x", [1.0], str)
    for shapes in (True, False):
        series = [Series(f"{i}", points, i, shapes=shapes) for i in range(12)]
        keys = chart("series", axis, axis, series).keys
        assert len({key.sample for key in keys}) == 12


def test_a_run_learns_over_steps_and_over_seconds():
    found = page("run")
    drawn = [a["aria-label"] for a in found.of_class("chart")]
    for figure in ("training loss", "accuracy, held out"):
        for across in ("step", "seconds of training"):
            assert any(text.startswith(f"{figure} over {across}") for text in drawn)
    assert "optimal, step 5\n0.8125" in found.tips()
    assert "optimal, step 4\n1.25" in found.tips()
    assert not [tip for tip in found.tips() if tip.startswith("optimal, step 3")]


def test_of_many_evaluations_some_are_drawn_and_the_last_one():
    one = RUN.evaluations[0]
    many = tuple(
        one.model_copy(update={"step": step, "value": step / 1000})
        for step in range(1, 1001)
    )
    times = (0.1,) * 1000
    long = RUN.model_copy(
        update={"steps": 1000, "iterations_s": times, "evaluations": many}
    )
    tips = page(run=long).tips()
    assert "optimal, step 1000\n1" in tips
    drawn = [tip for tip in tips if re.fullmatch(r"optimal, step \d+\n\d.*", tip)]
    assert len(drawn) < 700  # of steps and seconds, with the losses


def test_a_ratio_that_changes_is_drawn_over_the_steps():
    steady = RUN.traffic.model_copy(update={"steps_nbytes": (24_000,) * 5})
    growing = RUN.traffic.model_copy(
        update={"steps_nbytes": (502_000, 251_000, 251_000, 100_400, 50_200)}
    )
    drawn = page(run=RUN.model_copy(update={"traffic": growing}))
    assert "optimal, step 1\n2.00x" in drawn.tips()
    assert "optimal, step 5\n20.0x" in drawn.tips()
    assert (
        "ratio over step"
        not in page(run=RUN.model_copy(update={"traffic": steady})).text
    )


def test_a_run_has_the_same_colour_in_every_chart():
    bare = build.run(PLAN, losses=[3.0, 2.0, 1.0])
    growing = RUN.traffic.model_copy(update={"steps_nbytes": (502_000, 50_200)})
    full = RUN.model_copy(update={"traffic": growing})
    runs = arrange([("plan", PLAN), ("bare", bare), ("full", full)]).runs
    drawn = [*learning(runs), *traffic(runs), *drift(runs)]
    keys = [key for one in drawn if isinstance(one, Figure) for key in one.keys]
    colours = [re.search(r"s\d", key.sample)[0] for key in keys if "full" in key.name]
    assert len(colours) > len(list(learning(runs)))
    assert set(colours) == {"s1"}


def test_a_resumed_run_goes_on_where_it_was():
    resumed = RUN.model_copy(update={"steps": 105})
    assert "optimal, step 104\n1.25" in page(run=resumed).tips()


def test_drift_is_measured_over_predicted():
    assert any(
        tip.startswith("optimal, bucket 0: 2.00x") for tip in page("run", "plan").tips()
    )


def test_a_run_by_another_number_of_buckets_shows_no_drift():
    run = RUN.model_copy(update={"timing": build.timing((0.01, 0.01, 0.02))})
    assert "Drift" not in page("plan", run=run).text


def test_replans_are_marked():
    replan = Replan(
        step=3,
        reason="all-reduce is slower",
        plan_sha256=PLAN.sha256,
        expected_s=0.04,
        corrected_s=0.06,
        predicted_s=0.05,
    )
    found = page("plan", run=RUN.model_copy(update={"replans": (replan,)}))
    assert "from step 3 on: all-reduce is slower" in found.text
    assert found.text.count("optimal: new plan") == 4


def test_every_iteration_is_in_the_distribution_or_said_to_be_slower():
    usual = [0.04 + 0.0001 * i for i in range(195)]
    run = build.run(PLAN, [*usual, 0.2, 0.3, 0.4, 0.5, 0.6], warmup=0)
    found = page(run=run)
    counts = [
        int(tip.split("\n")[1].split()[0])
        for tip in found.tips()
        if tip.endswith("of 200 iterations")
    ]
    slower = int(re.search(r"(\d+) slower, up to", found.text)[1])
    assert (sum(counts), slower) == (195, 5)


def test_times_that_differ_by_a_rounding_have_no_distribution():
    alike = (0.1, math.nextafter(0.1, 1))
    found = page(run=build.run(PLAN, alike, warmup=0))
    assert "optimal: iteration times" not in found.text
    assert "optimal: iteration times" in page("run").text


def test_the_distribution_of_local_steps_is_that_of_their_rounds():
    times = [0.001, 0.039, 0.001, 0.041, 0.001, 0.043, 0.001]
    run = build.run(PLAN, times, local_steps=LocalSteps(every=2))
    rounds = IterationTimes(count=3, median_s=0.021, p95_s=0.022, min_s=0.02)
    found = page(run=run.model_copy(update={"iteration": rounds}))
    tips = [tip.split("\n") for tip in found.tips() if tip.endswith("of 3 rounds")]
    assert sum(int(said.split()[0]) for _, said in tips) == 3
    assert (tips[0][0].split(" to ")[0], tips[-1][0].split(" to ")[1]) == (
        "20.0 ms",
        "22.0 ms",
    )


def test_documents_of_an_emulated_link_say_so():
    link = EmulatedLink.parse("100mbit")
    found = page(network=NETWORK.model_copy(update={"emulated_link": link}))
    assert f"Emulated link {link}" in found.text
    assert "Emulated" not in page("network").text


def test_what_is_drawn_has_a_name():
    for tag, attributes in page(*DOCUMENTS).elements:
        if tag == "svg":
            assert "aria-label" in attributes or attributes["aria-hidden"] == "true"
