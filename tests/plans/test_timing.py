import pytest
from pydantic import ValidationError

from comm_plan.plans import Bucket, BucketTiming, Plan, PlannedModel, Predicted, Timing


def plan(**changes):
    parts = {
        "solver": "optimal",
        "model": PlannedModel(name="toy", fingerprint="sha256:0"),
        "world_size": 2,
        "backend": "gloo",
        "buckets": (Bucket(tensors=("a",)), Bucket(tensors=("b",))),
    }
    return Plan(**(parts | changes))


def predicted(buckets):
    return Predicted(
        iteration_s=4.0,
        exposed_s=1.0,
        lower_bound_s=3.0,
        timing=Timing(backward_start_s=1.0, compute_end_s=3.0, buckets=buckets),
    )


def test_a_plan_keeps_the_times_of_its_buckets():
    times = (
        BucketTiming(ready_s=1.5, start_s=1.5, finish_s=2.5),
        BucketTiming(ready_s=3.0, start_s=3.0, finish_s=4.0),
    )
    written = plan(predicted=predicted(times))
    assert Plan.from_json(written.to_json()) == written


def test_a_plan_refuses_times_of_other_buckets():
    times = (BucketTiming(ready_s=1.0, start_s=1.0, finish_s=2.0),)
    with pytest.raises(ValidationError, match="timing of 1 buckets, the plan has 2"):
        plan(predicted=predicted(times))


def test_a_bucket_does_not_start_before_it_is_ready():
    with pytest.raises(ValidationError, match="do not decrease"):
        BucketTiming(ready_s=2.0, start_s=1.0, finish_s=3.0)
