"""The accuracy benchmark: that it leaves no method out and reads its own figures."""

import pytest

pytest.importorskip("torch")

from comm_plan.benchmarks import accuracy
from comm_plan.plans.compression import METHODS


@pytest.mark.parametrize("workload", accuracy.STEPS)
def test_every_method_is_trained(workload):
    options = [variant.solve for variant in accuracy.variants(workload).values()]
    forced = {words[words.index("--compressor") + 1] for words in options
              if "--compressor" in words}  # fmt: skip
    assert forced == METHODS.keys() - {"dense"}
    assert any("lags" in words for words in options)
    assert "--compressor" not in options[0]


def run(variant, seed, value, message_nbytes):
    return accuracy.Run(
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


def test_a_finished_run_is_found_again(tmp_path):
    file = tmp_path / "runs.json"
    first, second = run("dense", 0, 0.9, 400), run("topk 1 %", 0, 0.8, 8)
    accuracy.add_run(first, file)
    accuracy.add_run(second, file)
    assert accuracy.load_runs(file) == [first, second]


def test_the_table_compares_means_with_dense():
    runs = [run("dense", 0, 0.98, 400), run("dense", 1, 1.0, 400)]
    runs += [run("topk 1 %", 0, 0.97, 8), run("topk 1 %", 1, 0.99, 8)]
    row = accuracy.table("digits", runs)[-1]
    assert row.split(" | ")[2:6] == ["98.00 %", "97.00 % to 99.00 %", "-1.00 pp", "50"]
