"""The table of time to accuracy: medians, what never got there, the best of DDP."""

import math

import pytest

from comm_plan.benchmarks import time_to_accuracy
from comm_plan.benchmarks.pictures import bars
from comm_plan.benchmarks.time_to_accuracy import (
    REFERENCES,
    TASKS,
    TUNED,
    best_ddp,
    rows,
    table,
)
from comm_plan.benchmarks.time_to_accuracy_rounds import Goal, Outcome


def outcomes(name, *seconds, rate=1.0):
    """Trainings of 10 steps, one a seed; None never got there."""
    return [
        Outcome(name, rate, seed, 10, each or 9.0, 0.5, each is not None)
        for seed, each in enumerate(seconds)
    ]


def test_a_row_is_the_median_and_never_if_most_never_got_there():
    found = rows(
        [
            *outcomes("b", 3.0, 1.0, None),
            *outcomes("c", None, None, 1.0),
            *outcomes("DDP, 25 MB", 6.0, 6.0, 6.0),
        ]
    )
    assert [row.name for row in found] == ["b", "DDP, 25 MB", "c"]
    assert found[0].seconds == 3.0
    assert found[0].fastest == 1.0
    assert found[0].slowest == math.inf
    assert found[2].seconds is None
    assert [row.reached for row in found] == [2, 3, 1]
    assert "| c | - |" in table(found)
    assert "| 2.00 |" in table(found)


def test_the_reference_is_the_best_bucket_size_without_a_hook():
    found = rows(
        [
            *outcomes("DDP, fp16 hook", 1.0),
            *outcomes("DDP, 25 MB", 3.0),
            *outcomes("DDP, 1 MB", 2.0),
        ]
    )
    assert best_ddp(found).name == "DDP, 1 MB"


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_ddp_has_all_bucket_sizes_in_every_task(task):
    assert set(REFERENCES) <= set(task.variants)


def test_every_variant_has_the_learning_rate_that_suits_it_best():
    found = rows(
        [
            *outcomes("DDP, 25 MB", 4.0),
            *outcomes("DDP, 25 MB", 3.0, rate=2.0),
            *outcomes("auto", 2.0),
            *outcomes("auto", None, rate=2.0),
        ]
    )
    assert [row.label for row in found] == ["auto", "DDP, 25 MB at 2x"]
    assert best_ddp(found).seconds == 3.0


def test_no_training_that_tune_judges_by_is_timed(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(time_to_accuracy, "run_all", lambda _, argv: asked.append(argv))
    time_to_accuracy.variants(tmp_path, None, TASKS["digits"], 1.0, TUNED)
    tunings = [argv for argv in asked if "tune" in argv]
    assert len(tunings) == len(TUNED)
    for argv in tunings:
        assert int(argv[argv.index("--seed") + 1]) > 3  # seeds that are timed


@pytest.mark.parametrize(
    ("metric", "value", "reached"),
    [("loss", 1.9, True), ("loss", 2.1, False), ("accuracy", 2.1, True)],
)
def test_a_loss_falls_to_its_goal_and_another_metric_rises(metric, value, reached):
    assert Goal(2.0, every=1, most_steps=1).reached(metric, value) is reached


def test_bars_are_a_png():
    png = bars({"slow": {"DDP": 1.0, "ours": None}}, "title", "s", highlighted="DDP")
    assert png.startswith(b"\x89PNG")
