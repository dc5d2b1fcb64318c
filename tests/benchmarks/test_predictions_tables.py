"""Pages show what the results hold."""

from __future__ import annotations

import statistics

import pytest

from comm_plan import units
from comm_plan.benchmarks import predictions_tables
from comm_plan.benchmarks.predictions_on_hosts import TUNED, TUNINGS
from comm_plan.benchmarks.tables import Errors, Line
from comm_plan.plans.pages import filled


def test_pages_have_the_tables_of_these_results():
    for path, text in predictions_tables.pages().items():
        assert path.read_text(encoding="utf-8") == text, "run make tables"


def test_a_table_tells_how_far_off_each_plan_was_and_all_of_them(monkeypatch):
    seconds = {
        "ddp": (None, 2.0),
        "optimal": (1.05, 1.0),
        "tuned, any accuracy": (0.88, 1.1),
    }
    lines = {
        name: Line(name, None, predicted_s, measured_s, measured_s, 10)
        for name, (predicted_s, measured_s) in seconds.items()
    }
    column = predictions_tables.Result(lines, Errors(0.02, -0.07, "optimal"))
    monkeypatch.setattr(predictions_tables, "result", lambda name: column)
    head, _, *rows = predictions_tables.table({"1 Gbit/s": "any"}).splitlines()
    assert head == "| plan | 1 Gbit/s | error | speed-up |"
    assert rows == [
        "| ddp | 2.00 s | - | 1.00x |",
        "| optimal | 1.00 s | +5 % | 2.00x |",
        "| tuned, any accuracy | 1.10 s | -20 % | 1.82x |",
        "| median, worst error |  | 12.5 %, -20 % |  |",
        "| within 10 % |  | 1 of 2 |  |",
        "| at the rounds' speed: median, worst |  | 2.0 %, -7 % |  |",
        "| tuned, any accuracy: behind the fastest |  | 10.0 % |  |",
    ]


def test_pages_say_that_what_tune_chose_was_predicted_after_trials():
    columns = predictions_tables.TABLES["predictions-cnn"]
    off = [
        statistics.median(
            abs(line.error)
            for name, line in predictions_tables.result(column).lines.items()
            if line.error is not None and name not in TUNINGS
        )
        for column in columns.values()
    ]
    *first, last = [f"{100 * share:.1f}" for share in off]
    results = (predictions_tables.ROOT / "docs" / "results.md").read_text()
    assert f"without it they are\n{', '.join(first)} and {last} %" in results
    lines = predictions_tables.result(columns["1 Gbit/s"]).lines
    assert lines["slgs"].measured_s == lines[TUNED].measured_s
    before = f"predicted to take {units.seconds(lines['slgs'].predicted_s)} at 1 Gbit/s"
    assert before in (predictions_tables.ROOT / "README.md").read_text()


def test_only_what_lies_between_the_markers_is_written_again():
    page = "before\n<!-- it: begin -->\nold\n<!-- it: end -->\nafter\n"
    assert filled(page, "it", "new\n") == page.replace("old", "new")
    with pytest.raises(ValueError):
        filled("no markers", "it", "new\n")
