"""The accuracy benchmark: that it leaves no method out and reads its own figures."""

from ast import literal_eval
from itertools import product
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from typer.main import get_command

pytest.importorskip("torch")

from comm_plan.benchmarks import accuracy
from comm_plan.benchmarks.accuracy import EVIDENCE, PAGE, RESULTS
from comm_plan.benchmarks.accuracy_methods import TASKS, variants
from comm_plan.benchmarks.accuracy_runs import Results, Run, measured, points, table
from comm_plan.benchmarks.pictures import Point, best, front
from comm_plan.cli import app
from comm_plan.planner.evidence import Evidence
from comm_plan.plans.compression import METHODS


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_every_method_is_trained(task):
    options = [variant.solve for variant in variants(task).values()]
    forced = {words[words.index("--compressor") + 1] for words in options
              if "--compressor" in words}  # fmt: skip
    untried = {"strom", "hybrid"} if task.thresholds is None else set()
    assert forced == METHODS.keys() - {"dense"} - untried
    assert any("lags" in words for words in options)
    assert "--compressor" not in options[0]


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_solve_understands_every_method(task):
    solve = get_command(app).commands["solve"]
    for variant in variants(task).values():
        words = ["profile.json", "network.json", *variant.solve]
        given = solve.make_context("solve", words).params
        if given["compressor"]:
            spec, _ = METHODS[given["compressor"].value]
            pairs = (pair.split("=") for pair in given["options"] or ())
            type(spec)(**{name: literal_eval(value) for name, value in pairs})


def run(variant, seed, value, message_nbytes):
    return Run(
        variant=variant,
        seed=seed,
        metric="accuracy",
        value=value,
        steps=10,
        dense_nbytes=400,
        message_nbytes=message_nbytes,
        compressed_ratio=20.0,
        history=[value],
    )


RUNS = [run("dense", 0, 0.98, 400), run("topk 1 %", 0, 0.97, 8),
        run("dense", 1, 1.0, 400), run("topk 1 %", 1, 0.99, 8)]  # fmt: skip


def test_finished_runs_and_plans_are_found_again(tmp_path):
    file = tmp_path / "runs.json"
    Results(file).keep(plans={"dense": 1})
    for one in RUNS:
        Results(file).add(one)
    assert Results(file).runs == RUNS
    assert Results(file).plans == {"dense": 1}


def test_only_what_is_not_there_is_trained(tmp_path, monkeypatch):
    """A measurement that was interrupted goes on, by the plans it began with."""
    file, asked = tmp_path / "runs.json", []
    Results(file).keep(plans=dict.fromkeys(["dense", "topk 1 %", "fp16"]))
    Results(file).add(RUNS[0])

    def run_local(argv, ranks, backend):
        assert (ranks, backend) == (accuracy.RANKS, "gloo")
        jobs = accuracy.json.loads(accuracy.Path(argv[-2]).read_text())
        asked.extend(product([jobs["seed"]], jobs["variants"]))
        return 0

    monkeypatch.setattr(accuracy, "run_local", run_local)
    of_all = variants(TASKS["digits"])
    chosen = {name: of_all[name] for name in ("dense", "topk 1 %", "fp16")}
    accuracy.measure("digits", chosen, 10, (0, 1), file, "gloo")
    assert asked == [*product([0], ["topk 1 %", "fp16"]), *product([1], chosen)]


def test_the_table_compares_means_with_dense():
    row = table(RUNS)[-1]
    assert row.split(" | ")[2:6] == ["98.00 %", "97.00 % to 99.00 %", "-1.00 pp", "50"]


def test_seeds_that_dense_does_not_have_are_not_compared():
    runs = [*RUNS, run("topk 1 %", 7, 0.5, 8), run("fp16", 7, 0.5, 200)]
    assert table(runs) == table(RUNS)
    assert measured("task", runs) == measured("task", RUNS)
    assert points(runs, {"topk 1 %": "plain"}) == points(RUNS, {"topk 1 %": "plain"})


def test_results_kept_elsewhere_change_no_evidence(tmp_path, monkeypatch):
    monkeypatch.setattr(accuracy, "EVIDENCE", tmp_path / "evidence.json")
    monkeypatch.setattr(accuracy, "PICTURES", tmp_path)
    accuracy.write_tables(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["accuracy.md"]


def test_points_are_means_with_their_ranges():
    dense, topk = points(RUNS, {"dense": "dense", "topk 1 %": "as printed", "x": "y"})
    assert (dense.x, dense.y) == (1, pytest.approx(0.99))
    assert (topk.x, topk.lowest, topk.highest) == (50, 0.97, 0.99)
    picture = front([dense, topk], "title", "x", "y", rising=True)
    assert picture.startswith(b"\x89PNG")


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1),
    st.booleans(),
)
def test_the_front_holds_all_that_nothing_beats(places, rising):
    sign = 1 if rising else -1
    made = [Point("", "", x, y, y, y) for x, y in places]
    line = {(point.x, point.y) for point in best(made, rising)}
    for x, y in places:
        beaten = any(
            a >= x and sign * b >= sign * y and (a, b) != (x, y) for a, b in places
        )
        assert ((x, y) in line) != beaten


def test_the_evidence_is_that_of_the_results():
    kept = TypeAdapter(tuple[Evidence, ...]).validate_json(EVIDENCE.read_bytes())
    assert kept == accuracy.evidence(RESULTS), "run: benchmarks.accuracy table"


def test_the_page_has_the_tables_of_the_results():
    text = PAGE.read_text(encoding="utf-8")
    assert accuracy.on_page(text) == text, "run: benchmarks.accuracy table"


def test_what_the_page_says_of_local_steps_at_their_best_rate():
    runs = Results(RESULTS / "accuracy-char-lm-2000.json").runs

    def loss(name):
        return mean(run.value for run in runs if run.variant == name)

    dense = loss("dense, rate 0.006")
    alone = loss("4 local steps, rate 0.012") - dense
    squeezed = loss("4 local steps, doublesqueeze 4 bits, rate 0.012") - dense
    said = f"local steps are {alone:.3f} behind, and with 30 times less traffic"
    assert f"{said} {squeezed:.3f}:" in PAGE.read_text(encoding="utf-8")


def test_a_method_is_within_noise_if_dense_might_have_done_it():
    def judged(*values):
        runs = [*RUNS, *(run("fp16", seed, v, 200) for seed, v in enumerate(values))]
        return measured("task", runs)["fp16"]

    assert judged(0.98, 1.0).difference == pytest.approx(0)
    assert judged(0.985, 0.985).within_noise  # 0.5 points behind, as a run of dense
    assert not judged(0.98, 0.979).within_noise
    assert judged(1.0, 1.0).within_noise
    assert judged(0.98, 1.0).ratio == 2


def test_only_equal_seeds_are_compared():
    lucky = [*RUNS, run("fp16", 1, 0.985, 200)]
    found = measured("task", lucky)["fp16"]
    assert found.difference == pytest.approx(-0.015)
    assert not found.within_noise  # better than dense of seed 0, not than that of 1
    assert table(lucky)[-1].split(" | ")[4] == "-1.50 pp"
