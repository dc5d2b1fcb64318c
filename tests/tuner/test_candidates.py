"""What is tried could be best; what is not has a reason."""

from __future__ import annotations

import pytest

from comm_plan.errors import InputError
from comm_plan.planner import SOLVERS, Settings, evidence
from comm_plan.planner.evidence import Evidence
from comm_plan.planner.solvers import CHOOSING, MERGED
from comm_plan.plans.plan import TODAY
from comm_plan.plans.profile import Sent
from comm_plan.tests.support import documents
from comm_plan.tuner.candidates import (
    MILD_RATIOS,
    MODEL_ERROR,
    candidates,
)

COSTS = {"fp16": (1e-5, 1e-10), "topk": (1e-5, 1e-9), "terngrad": (1e-5, 4e-8)}


def model():
    return documents.profile(
        [2e-3] * 8,
        [50_000, 1_000_000] * 4,
        forward_s=5e-3,
        compression=documents.compression(**COSTS),
    )


def network(beta):
    return documents.network(
        4,
        allreduce=documents.fit((0, 1e-4, 1.5 * beta)),
        allgather=documents.fit((0, 1e-4, 0.75 * beta)),
    )


def listed(beta=1e-8, most=10, objective="time", **settings):
    settings = Settings(**{"accuracy": "loss"} | settings)
    return candidates(model(), network(beta), settings, objective, most)


def names(found):
    return [candidate.name for candidate in found.tried]


@pytest.mark.parametrize("beta", [1e-12, 1e-9, 1e-8, 1e-7])
def test_the_baseline_is_first_and_merging_tried_if_it_differs(beta):
    found = listed(beta)
    assert names(found)[0] == TODAY
    same = f"the same plan as {TODAY}"
    assert MERGED in names(found) or found.not_tried[MERGED] == same


def test_where_nothing_may_be_left_out_dense_plans_are_tried():
    found = listed(max_ratio=1.0)
    assert names(found)[0] == TODAY
    assert {c.plan.is_exact for c in found.tried} == {True}
    assert "not allowed" in found.not_tried["lags"]


def test_no_plan_is_missing_without_a_reason():
    found = listed()
    assert set(SOLVERS) <= {*names(found), *found.not_tried}
    assert all(found.not_tried.values())


def test_what_cannot_be_best_is_not_tried():
    found = listed(beta=1e-7)
    best_s = min(candidate.predicted_s for candidate in found.tried)
    limit_s = best_s * (1 + MODEL_ERROR) / (1 - MODEL_ERROR)
    for candidate in found.tried[2:]:
        assert candidate.predicted_s <= limit_s
    assert "predicted" in found.not_tried["wfbp"]


def test_where_the_loss_decides_gentler_plans_are_tried_too():
    fast = names(listed(beta=1e-7))
    gentle = names(listed(beta=1e-7, objective="loss"))
    assert set(fast) <= set(gentle)
    assert f"{MERGED}, fp16" in gentle
    assert f"{MERGED}, fp16" not in fast


def test_where_the_loss_decides_auto_is_also_asked_for_less_compression():
    by_time, by_loss = listed(beta=1e-7), listed(beta=1e-7, objective="loss", most=99)
    known = {*names(by_loss), *by_loss.not_tried}
    for ratio in MILD_RATIOS:
        name = f"{CHOOSING}, {ratio:g}x"
        assert name in known
        assert name not in {*names(by_time), *by_time.not_tried}
    mild = [c for c in by_loss.tried if c.name.startswith(f"{CHOOSING}, ")]
    assert mild
    assert all(c.ratio <= float(c.name.split(", ")[1][:-1]) * 1.01 for c in mild)


def test_plans_that_leave_out_as_much_as_those_tried_are_not():
    found = listed(beta=1e-7, objective="loss", most=99)
    reasons = set(found.not_tried.values())
    assert "2 plans that leave out about as much are tried" in reasons


def test_equal_plans_are_tried_once():
    found = listed(beta=1e-12)
    plans = [repr(candidate.plan.buckets) for candidate in found.tried]
    assert len(set(plans)) == len(plans)
    assert any("same plan as" in reason for reason in found.not_tried.values())


def test_no_more_than_asked_for_are_tried():
    assert len(listed(most=3).tried) == 3


def test_nothing_lost_means_dense_plans_only():
    assert all(c.plan.is_dense for c in listed(beta=1e-7, accuracy="none").tried)


def test_what_leaves_out_more_than_the_user_allows_is_not_tried():
    found = listed(max_ratio=50.0)
    reason = "it leaves out 100x, above --max-ratio 50"
    assert found.not_tried[f"{MERGED}, topk"] == reason


def test_what_is_not_known_to_be_within_noise_is_not_tried(monkeypatch):
    known = Evidence(method="topk", ratio=50, tasks=())
    monkeypatch.setattr(evidence, "measured", lambda: (known,))
    found = listed(beta=1e-7, accuracy="noise")
    assert all(c.ratio <= 50 * 1.001 for c in found.tried)
    assert f"{CHOOSING}" in names(found)
    reason = found.not_tried[f"{MERGED}, terngrad"]
    assert reason.endswith("terngrad: its accuracy was not measured")
    allowed = listed(beta=1e-7, allow=("terngrad",))
    assert f"{MERGED}, terngrad" in {*names(allowed), *allowed.not_tried}
    assert "accuracy" not in allowed.not_tried.get(f"{MERGED}, terngrad", "")


def test_methods_that_are_not_allowed_are_not_used():
    found = listed(beta=1e-7, allow=("dense", "fp16"))
    kinds = {
        bucket.compressor.kind
        for candidate in found.tried
        for bucket in candidate.plan.buckets
    }
    assert found.not_tried["lags"] == "topk is not allowed"
    assert kinds == {"dense", "fp16"}


def test_a_forced_compressor_is_refused():
    with pytest.raises(InputError, match="a tuner chooses"):
        listed(compressor="topk")


def test_rounds_of_local_steps_are_tried_if_the_loss_decides():
    settings = Settings(accuracy="loss", momentum_correction=True)
    costs = model(), network(1e-8)
    found = candidates(*costs, settings, "loss", most=20, local_steps=(4, 16))
    local = {c.name: c for c in found.tried if c.local}
    assert "optimal, 16 local steps" in local
    listed_anyhow = {*local, *found.not_tried}
    assert {f"{name}, 4 local steps" for name in (MERGED, CHOOSING)} <= listed_anyhow
    for name, candidate in local.items():
        assert not candidate.plan.is_exact
        assert candidate.ratio >= candidate.plan.round_steps
        assert f", {candidate.plan.local_steps.every} local steps" in name
        assert not candidate.plan.momentum_correction
    without = candidates(*costs, settings, "time", local_steps=(4,))
    assert not any(candidate.local for candidate in without.tried)


def test_what_is_named_twice_is_tried_once():
    settings = Settings(accuracy="loss", allow=("dense", "topk", "topk"))
    costs = model(), network(1e-7)
    found = candidates(*costs, settings, "loss", most=20, local_steps=(4, 4))
    each = [*names(found), *found.not_tried]
    assert len(set(each)) == len(each)
    assert len({f"{MERGED}, topk", f"{MERGED}, 4 local steps"} & {*each}) == 2


def test_where_gradients_are_sparse_local_steps_are_not_tried():
    tensors = list(model().tensors)
    tensors[-1] = tensors[-1].model_copy(update={"rows": 10})
    sparse = model().model_copy(update={"tensors": tuple(tensors)})
    settings = Settings(accuracy="loss")
    found = candidates(sparse, network(1e-8), settings, "loss", local_steps=(4,))
    assert not any(candidate.local for candidate in found.tried)
    assert "4 local steps" in found.not_tried


def test_a_method_is_judged_by_what_it_was_seen_to_send():
    """Strom by the example leaves out 100x."""
    costs = documents.compression(strom=(1e-5, 1e-9), **COSTS)
    sent = {"strom": Sent(density=0.2)}
    seen = model().model_copy(update={"compression": costs, "sent": sent})
    settings = Settings(accuracy="loss", allow=("dense", "strom"), max_ratio=32.0)
    found = candidates(seen, network(1e-7), settings, most=99)
    assert "leaves out" not in found.not_tried.get(f"{MERGED}, strom", "")


def test_rounds_of_one_step_are_none():
    with pytest.raises(InputError, match="--local-steps"):
        candidates(model(), network(1e-8), Settings(), "loss", local_steps=(1,))
