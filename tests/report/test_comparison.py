"""Runs side by side, and trials, as tables."""

import pytest
from rich.console import Console

from comm_plan.plans import Curve, Evaluation
from comm_plan.report.comparison import comparison, has_to_fall, seconds_to
from comm_plan.report.tuning import judged_rows, trial_rows, tuning_rows
from comm_plan.tests.support import documents as build

PROFILE = build.profile([0.01, 0.02], [10, 20])
PLAN = build.plan(PROFILE, iteration_s=0.04)


def run(
    iterations_s=(0.05,) * 6, accuracies=((2, 0.5), (4, 0.9), (6, 0.95)), **changes
):
    return build.run(PLAN, iterations_s, accuracies=accuracies, **changes)


@pytest.mark.parametrize(
    ("target", "expected_s"), [(0.4, 0.1), (0.9, 0.2), (0.95, 0.3), (0.99, None)]
)
def test_the_time_to_an_accuracy_counts_iterations(target, expected_s):
    reached_s = seconds_to(run(), "accuracy", target, falls=False)
    assert reached_s == (None if expected_s is None else pytest.approx(expected_s))


def test_an_evaluation_after_more_steps_than_were_timed_is_at_the_end():
    record = run(accuracies=[(9, 0.9)])
    assert seconds_to(record, "accuracy", 0.9, falls=False) == pytest.approx(0.3)


def test_a_loss_has_to_come_down():
    losses = (
        Evaluation(step=2, epoch=0, metric="loss", value=2.0),
        Evaluation(step=4, epoch=1, metric="loss", value=0.5),
    )
    record = run(evaluations=losses)
    assert seconds_to(record, "loss", 1.0, falls=True) == pytest.approx(0.2)
    assert seconds_to(record, "accuracy", 0.1, falls=False) is None


def test_the_time_to_what_a_resumed_run_reached_is_not_known():
    resumed = run().model_copy(update={"steps": 12})
    table = comparison([("whole", run()), ("resumed", resumed)], target=0.9)
    assert list(table.columns[-1].cells) == ["200 ms", "-"]


def test_a_run_that_was_not_evaluated_did_not_miss_the_target():
    short, blind = run(accuracies=[(2, 0.5)]), run(accuracies=())
    runs = [("whole", run()), ("short", short), ("blind", blind)]
    table = comparison(runs, target=0.9)
    assert list(table.columns[-1].cells) == ["200 ms", "never", "-"]


@pytest.mark.parametrize(
    ("metric", "first", "falls"),
    [
        ("val_loss", 2.0, True),
        ("error", 2.0, True),
        ("top5", 0.5, False),
        ("accuracy", 2.0, False),
        ("loss", 0.5, True),
    ],
)
def test_what_starts_above_the_target_has_to_fall(metric, first, falls):
    assert has_to_fall(metric, first, 1.0) == falls


def test_the_time_to_a_metric_that_falls_is_shown():
    values = [(2, 2.0), (4, 1.5), (6, 0.5)]
    record = run(
        evaluations=tuple(
            Evaluation(step=step, epoch=0, metric="val_loss", value=value)
            for step, value in values
        )
    )
    text = printed(comparison([("ddp", record)], target=1.0))
    ddp = next(line.split() for line in text.splitlines() if line.startswith(" ddp"))
    assert ddp[-3:] == ["0.5", "300", "ms"]


def printed(table, width=100):
    console = Console(width=width, record=True)
    console.print(table)
    return console.export_text()


def test_every_run_is_held_against_the_first():
    slow = run((0.1,) * 6)
    fast = run((0.05,) * 6, sent=[(4000, 1000)])
    text = printed(comparison([("ddp", slow), ("mine", fast)], target=0.9))
    mine = next(line.split() for line in text.splitlines() if "mine" in line)
    assert mine == [
        "mine", "40.0", "ms", "50.0", "ms", "-20.0%", "2.00x", "1.00", "kB", "0.95",
        "200", "ms",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [60, 80])
def test_no_figure_is_cut_where_names_are_long_or_the_terminal_is_narrow(width):
    name = "resnet50-warmup-of-5-epochs-seed-1"
    text = printed(comparison([(name, run(sent=[(4000, 1000)]))], target=0.9), width)
    assert "…" not in text
    assert "200" in text


@pytest.mark.parametrize(
    ("took_s", "said"),
    [
        ((0.025, 0.03), "37.5 % more than predicted: the machine is slower"),
        ((0.015, 0.01), "37.5 % less than predicted: the machine is faster"),
        ((0.025, 0.021), "computation took 25.0 % more in wfbp than predicted"),
        ((0.025, 0.015), "25.0 % more in wfbp, 25.0 % less in mine than predicted"),
        ((0.021, 0.019), None),
    ],
)
def test_a_machine_that_is_not_as_fast_as_it_was_is_named(took_s, said):
    """If it is so in all runs with a prediction; else the runs are."""
    expected, *took = (
        build.timing((0.01, 0.01, 0.04), compute_end_s=s) for s in (0.02, *took_s)
    )
    wfbp, mine = (run(predicted_timing=expected, timing=timing) for timing in took)
    ddp = run(predicted_timing=None, timing=took[0])
    text = printed(comparison([("ddp", ddp), ("wfbp", wfbp), ("mine", mine)]))
    assert ("computation took" in text) == (said is not None)
    assert said is None or said in " ".join(text.split())


def test_runs_that_cannot_be_told_from_the_first_are_named():
    scattered = (0.05, 0.055, 0.06, 0.065, 0.07, 0.075)
    ddp, near, far = (
        run([s * factor for s in scattered]) for factor in (1.0, 0.9, 0.5)
    )
    text = printed(comparison([("ddp", ddp), ("near", near), ("far", far)]))
    said = "may be noise: the speed of near, the middle halves of whose iterations"
    assert said in " ".join(text.split())
    assert "noise" not in printed(comparison([("ddp", ddp), ("far", far)]))


def test_runs_without_evaluations_have_no_such_columns():
    text = printed(comparison([("ddp", run(accuracies=()))], target=0.9))
    assert "accuracy" not in text
    assert "after" not in text


def test_what_was_judged_by_loss_is_listed_with_the_loss_of_each_seed():
    curves = [
        Curve(seed=seed, seconds=(1.0, 2.0 + seed), losses=(3.0, end))
        for seed, end in enumerate((0.5, 1e307))
    ]
    tuning = build.tuning(
        PROFILE,
        build.trial("threshold", 0.1, 0.2, curves[:1]),
        build.trial("never", 0.1, None, [Curve(seed=0, seconds=(), losses=())]),
        build.trial("topk", 0.1, 0.05, curves, lossless=False),
    )
    assert judged_rows(tuning) == [
        ("threshold", "1", "2.00 s", "0.5"),
        ("topk", "2", "2.50 s", "0.5, diverged"),
    ]


def test_trials_are_listed_from_the_fastest():
    tuning = build.tuning(
        PROFILE,
        build.trial("threshold", 0.1, 0.2),
        build.trial("never", 0.1),
        build.trial("lags", 0.1, 0.05, lossless=False),
        complete=False,
    )
    rows = trial_rows(tuning)
    assert [row[0] for row in rows] == ["lags", "threshold", "never"]
    assert rows[0][1:5] == ("less", "100 ms", "50.0 ms", "25.0 %")
    assert rows[2][3] == "-"
    facts = dict(tuning_rows(tuning))
    assert "ended early" in facts["took"]
    assert facts["run"] == "plan.json: lags"
