import pytest

from comm_plan.plans import (
    Bucket,
    BucketTraffic,
    Contention,
    Evaluation,
    Following,
    IterationTimes,
    LocalSteps,
    PhaseRates,
    Plan,
    PlannedModel,
    Predicted,
    Rates,
    RunRecord,
    TopK,
    Traffic,
)
from comm_plan.plans.profile import SecondMoments
from comm_plan.report.plan import (
    BUCKET_HEADER,
    bucket_rows,
    compressor_text,
    plan_rows,
)
from comm_plan.report.run import (
    BUCKET_TRAFFIC_HEADER,
    bucket_traffic_rows,
    prediction_error,
    run_rows,
)
from comm_plan.report.tables import profile_rows
from comm_plan.tests.support import documents

PLAN = Plan(
    solver="optimal",
    model=PlannedModel(name="mlp", fingerprint="sha256:0"),
    world_size=4,
    backend="gloo",
    buckets=(
        Bucket(tensors=("fc2.weight", "fc2.bias")),
        Bucket(
            tensors=("fc1.weight",),
            compressor=TopK(density=0.001),
            collective="allgather",
        ),
    ),
    predicted=Predicted(
        iteration_s=0.05,
        exposed_s=0.01,
        lower_bound_s=0.04,
        baselines={"single": 0.06, "wfbp": 0.1},
    ),
)

RECORD = RunRecord(
    workload="mlp",
    solver="optimal",
    plan_sha256="0",
    model_fingerprint="sha256:0",
    backend="gloo",
    world_size=4,
    steps=100,
    skipped_steps=2,
    iteration=IterationTimes(count=90, median_s=0.05, p95_s=0.06, min_s=0.048),
    predicted_iteration_s=0.048,
    traffic=Traffic(
        buckets=(
            BucketTraffic(
                tensors=2, kind="topk", collective="allgather",
                dense_nbytes=4_000_000, message_nbytes=8_000.0,
            ),
            BucketTraffic(
                tensors=1, kind="vgc", collective="allgather",
                dense_nbytes=4_000, message_nbytes=0.0,
            ),
        ),
        dense_nbytes=4_004_000,
        message_nbytes=8_000.0,
        compression_ratio=500.5,
    ),
    evaluations=(
        Evaluation(step=50, epoch=1, metric="accuracy", value=0.8),
        Evaluation(step=100, epoch=2, metric="accuracy", value=0.9),
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("following", "said"),
    [
        (Following(windows=1), "compared 1 time with what was expected"),
        (
            Following(windows=9, kept=1),
            "compared 9 times with what was expected; 1 time a change lasted, and the "
            "plan was the best still",
        ),
    ],
)
def test_a_run_says_how_often_its_plan_was_looked_at(following, said):
    assert "adapting" not in dict(run_rows(RECORD))
    record = RECORD.model_copy(update={"following": following})
    assert dict(run_rows(record))["adapting"] == said


def test_run_is_held_against_its_prediction():
    assert prediction_error(RECORD) == pytest.approx(-0.04)
    rows = dict(run_rows(RECORD))
    assert rows["iteration, median"] == "50.0 ms"
    assert rows["iteration, predicted"] == "48.0 ms, 4.00 % below the measured"
    assert "computation of rank 0" not in rows


def test_computation_is_held_against_its_own_prediction():
    expected, took = (
        documents.timing((0.01, 0.01, 0.04), compute_end_s=seconds)
        for seconds in (0.02, 0.03)
    )
    timings = {"timing": took, "predicted_timing": expected}
    rows = dict(run_rows(RECORD.model_copy(update=timings)))
    assert rows["computation of rank 0"] == "30.0 ms, 50.0 % longer than predicted"


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (LocalSteps(every=8), "8, then the mean of the ranks"),
        (
            LocalSteps(every=8, learning_rate=0.7, momentum=0.9),
            "8, then an outer SGD: learning rate 0.7, Nesterov momentum 0.9",
        ),
    ],
)
def test_local_steps_are_named(steps, told):
    assert (
        dict(plan_rows(PLAN.model_copy(update={"local_steps": steps})))["local steps"]
        == told
    )
    assert "local steps" not in dict(plan_rows(PLAN))
    took = documents.timing((0.02, 0.03, 0.05), compute_end_s=0.03)
    changes = {"local_steps": steps, "timing": took, "predicted_timing": took}
    rows = dict(run_rows(RECORD.model_copy(update=changes)))
    assert rows["local steps"] == told
    assert rows["iteration, min to p95"].endswith("90 rounds")
    assert "computation of rank 0, a round" in rows


def test_second_moments_that_were_estimated_are_named():
    assert "second moments" not in dict(run_rows(RECORD))
    record = RECORD.model_copy(update={"micro_batches": 4})
    assert dict(run_rows(record))["second moments"] == "from 4 micro-batches"


@pytest.mark.parametrize(
    ("moments", "told"),
    [
        (SecondMoments(), "exact"),
        (SecondMoments(extra_s=0.012), "exact, 12.0 ms more an iteration"),
        (
            SecondMoments(objection="a mixes", micro_batches=4, extra_s=0.5),
            "from 4 micro-batches, 500 ms more an iteration",
        ),
        (SecondMoments(objection="a mixes samples"), "none: a mixes samples"),
    ],
)
def test_a_profile_says_what_second_moments_take(moments, told):
    profile = documents.profile([1e-3], [10])
    assert "second moments" not in dict(profile_rows(profile))
    profile = profile.model_copy(update={"second_moments": moments})
    assert dict(profile_rows(profile))["second moments"] == told


@pytest.mark.parametrize(
    ("world_size", "told"),
    [
        (1, "computation at 80.0 % beside coding (at 90.0 %)"),
        (
            2,
            "computation at 100 % beside messages (at 100 %), 100 % beside bytes (at "
            "100 %), 80.0 % beside coding (at 90.0 %)",
        ),
    ],
)
def test_of_one_rank_only_what_was_measured_is_shown(world_size, told):
    """It sends nothing."""
    codec = Rates(compute=0.8, channel=0.9)
    beside = Contention(
        world_size=world_size, codec=codec, compressing=PhaseRates(codec=codec)
    )
    profile = documents.profile([1e-3], [10]).model_copy(update={"contention": beside})
    compressing = told.replace("computation", "compression")
    rows = dict(profile_rows(profile))
    assert rows["beside communication"] == f"{told}; {compressing}"


def test_run_without_a_prediction_claims_none():
    record = RECORD.model_copy(update={"predicted_iteration_s": None})
    assert prediction_error(record) is None
    assert "iteration, predicted" not in dict(run_rows(record))


def test_run_tells_traffic_skipped_steps_and_the_last_evaluation():
    rows = dict(run_rows(RECORD))
    assert rows["steps"] == "100, 2 of them skipped"
    assert rows["messages, per step"] == "8.00 kB for 4.00 MB of gradients: 500x less"
    assert rows["accuracy, held out"] == "0.9 after step 100"


def test_run_of_one_rank_tells_that_nothing_was_sent():
    buckets = tuple(
        bucket.model_copy(update={"message_nbytes": 0.0})
        for bucket in RECORD.traffic.buckets
    )
    nothing = {"buckets": buckets, "message_nbytes": 0.0, "compression_ratio": 1.0}
    traffic = RECORD.traffic.model_copy(update=nothing)
    rows = dict(run_rows(RECORD.model_copy(update={"traffic": traffic})))
    assert rows["messages, per step"] == "0 B for 4.00 MB of gradients"


def test_run_of_local_steps_tells_rounds_that_were_undone():
    record = RECORD.model_copy(update={"local_steps": LocalSteps(every=4)})
    assert dict(run_rows(record))["steps"] == "100; 2 rounds undone"


def test_run_with_no_step_has_no_times():
    empty = IterationTimes(count=0, median_s=0, p95_s=0, min_s=0)
    rows = dict(run_rows(RECORD.model_copy(update={"iteration": empty})))
    assert not any(name.startswith("iteration") for name in rows)


def test_every_bucket_has_its_row_of_traffic():
    rows = bucket_traffic_rows(RECORD)
    assert {len(row) for row in rows} == {len(BUCKET_TRAFFIC_HEADER)}
    assert [row[-1] for row in rows] == ["500x", "-"]
    assert bucket_traffic_rows(RECORD.model_copy(update={"traffic": None})) == []


def test_plan_is_compared_with_the_slowest_baseline_first():
    rows = plan_rows(PLAN)
    assert rows[-2:] == [
        ("against wfbp", "100 ms: 2.00x as fast"),
        ("against single", "60.0 ms: 1.20x as fast"),
    ]
    assert dict(rows)["dense lower bound"] == "40.0 ms; the plan takes 1.25x that"


def test_plan_says_when_it_is_extrapolated():
    predicted = PLAN.predicted.model_copy(update={"extrapolated_from": 2})
    rows = dict(plan_rows(PLAN.model_copy(update={"predicted": predicted})))
    assert rows["iteration, predicted"].endswith("extrapolated from 2 ranks")


def test_plan_written_by_hand_needs_no_prediction():
    rows = dict(plan_rows(PLAN.model_copy(update={"predicted": None})))
    assert rows["buckets"] == "2 of 3 tensors"


def test_one_of_a_kind_is_no_plural():
    profile = documents.profile([1e-3], [10])
    plan = documents.plan(profile)
    predicted = plan.predicted.model_copy(update={"extrapolated_from": 1})
    rows = dict(plan_rows(plan.model_copy(update={"predicted": predicted})))
    assert rows["buckets"] == "1 of 1 tensor"
    assert rows["iteration, predicted"].endswith("extrapolated from 1 rank")
    assert dict(profile_rows(profile))["gradients"] == "1 tensor, 40 B"
    times = dict(run_rows(documents.run(plan, [0.05], warmup=0)))
    assert times["iteration, min to p95"].endswith(", 1 iteration")


def test_a_plan_says_what_is_known_of_its_accuracy():
    assert {"accuracy", "momentum"}.isdisjoint(dict(plan_rows(PLAN)))
    known = ("topk up to 20x: within noise", "fp16 up to 2x: within noise")
    changes = {"evidence": known, "momentum_correction": True}
    rows = dict(plan_rows(PLAN.model_copy(update=changes)))
    assert rows["accuracy"] == "\n".join(known)
    assert rows["momentum"] == "applied before compression"


def test_every_bucket_has_its_row():
    rows = bucket_rows(PLAN)
    assert {len(row) for row in rows} == {len(BUCKET_HEADER)}
    assert rows[0] == ("0", "2", "fc2.weight", "fc2.bias", "dense", "allreduce")
    assert rows[1][4] == "topk 0.1 %"


def test_a_density_per_tensor_is_shown_as_a_range():
    assert compressor_text(TopK(density=(0.01, 0.001)), 2) == "topk 0.1 % to 1 %"
