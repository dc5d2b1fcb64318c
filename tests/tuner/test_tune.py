"""Tuning finds a plan, keeps to its budget, and leaves no trace."""

from __future__ import annotations

import itertools
import math
import random
import re
import socket
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from comm_plan.collectives.emulation import emulate
from comm_plan.commbench import probe as probing
from comm_plan.commbench.probe import Probed
from comm_plan.errors import InputError, RunError
from comm_plan.planner import Settings, make_problem, solve
from comm_plan.plans import EmulatedLink, LocalSteps, Network, Plan, Profile, Tuning
from comm_plan.profiler import measure
from comm_plan.tests.runtime.trainings import net, plan_for, workload
from comm_plan.tests.support import documents
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport
from comm_plan.tuner import measuring, session
from comm_plan.tuner.options import Options
from comm_plan.tuner.trials import Block, Trials
from comm_plan.tuner.tune import tune
from comm_plan.tuner.tuned import Tuned, file_of

SLOW = documents.network(
    2,
    allreduce=documents.fit((0, 1e-3, 1e-5)),
    allgather=documents.fit((0, 1e-3, 5e-6)),
)


def network(world_size=2):
    return documents.network(
        world_size,
        allreduce=documents.fit((0, 1e-3, 1e-8)),
        allgather=documents.fit((0, 1e-3, 5e-9)),
    )


def profiled(training):
    measured = measure(training, iterations=20)
    costs = documents.compression(topk=(1e-6, 1e-9), fp16=(1e-6, 1e-9))
    return measured.model_copy(update={"compression": costs})


def fingerprint(model):
    """Return everything that a trial could leave behind, as numbers."""
    tensors = [*model.parameters(), *model.buffers()]
    return (
        [tensor.detach().clone() for tensor in tensors],
        [parameter.grad for parameter in model.parameters()],
        random.random(),
        np.random.rand(),
        torch.rand(1).item(),
    )


def state_of(model):
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    return fingerprint(model)


@pytest.mark.parametrize("fails", [False, True])
def test_a_trial_leaves_no_trace(fails):
    model = net(nn.BatchNorm1d(16), nn.Dropout(0.5))
    training = workload(model, 1)
    if fails:
        batches = training.batches

        def broken(*arguments):
            yield from itertools.islice(batches(*arguments), 3)
            raise RuntimeError("no more data")

        training = workload(model, 1, batches=broken)
    trials = Trials(training, LocalTransport())
    before = state_of(model)
    state_of(model)  # the random numbers are where they were before
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    if fails:
        with pytest.raises(RuntimeError, match="no more data"):
            trials.run(plan_for(model, 1), 5)
    else:
        trials.run(plan_for(model, 1), 5)
    after = fingerprint(model)
    for was, now in zip(before[0], after[0], strict=True):
        assert torch.equal(was, now)
    assert before[1:] == after[1:]


class Average(nn.Module):
    """Holds another tensor as its buffer after each forward."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


def test_modules_get_their_own_buffers_back():
    model = net(Average())
    before = dict(model.named_buffers())
    Trials(workload(model, 1), LocalTransport()).run(plan_for(model, 1), 5)
    after = dict(model.named_buffers())
    assert after.keys() == before.keys()
    for name, buffer in before.items():
        assert after[name] is buffer
        assert not buffer.any()


def test_a_trial_trains_and_says_when_buckets_travelled():
    model = net()
    block = Trials(workload(model, 1), LocalTransport()).run(plan_for(model, 1), 12)
    assert block.seconds.shape == block.losses.shape == (12,)
    assert block.losses[-3:].mean() < block.losses[:3].mean()
    assert len(block.timing.buckets) == len(plan_for(model, 1).buckets)


class Half(nn.Module):
    """A net, and a layer that nobody uses."""

    def __init__(self):
        super().__init__()
        self.used, self.spare = net(), nn.Linear(3, 3)

    def forward(self, x):
        return self.used(x)


def test_trials_of_models_with_unused_parameters():
    model = Half()
    training = workload(model, 1)
    with pytest.raises(RunError, match="find-unused-parameters"):
        Trials(training, LocalTransport()).run(plan_for(model, 1), 2)
    trials = Trials(training, LocalTransport(), find_unused_parameters=True)
    assert trials.run(plan_for(model, 1), 2).seconds.shape == (2,)


def tuned(tmp_path, link=None, **changes):
    profile = profiled(workload(net(), 2))
    saved = []

    def rank(transport):
        if link is not None:
            transport = emulate(transport, link)

        def save(best):
            saved.append(best.tuning)
            best.save(tmp_path)

        parts = {"profile": profile, "network": network(), "budget_s": 60.0}
        options = Options(**(parts | changes))
        return tune(workload(net(), 2), transport, options, save).tuning

    first, second = run_ranks(2, rank)
    assert first.winner == second.winner
    return first, saved


def test_the_folder_holds_the_plans_and_the_evidence(tmp_path):
    # So slow a link says how long an iteration takes, however busy the cores are.
    link = EmulatedLink(bytes_per_s=1e5, latency_s=5e-4)
    tuning, saved = tuned(
        tmp_path, link=link, network=SLOW, settings=Settings(accuracy="none")
    )
    assert Tuning.load(tmp_path / "tuning.json") == saved[-1]
    assert tuning.complete
    assert tuning.took_s <= tuning.budget_s
    assert [t.name for t in tuning.trials][:2] == ["threshold", "optimal"] or (
        "optimal" in tuning.not_tried
    )
    for trial in tuning.trials:
        assert Plan.load(tmp_path / trial.plan).sha256
        assert trial.measured_s > 0
    winner, plan = (
        Plan.load(tmp_path / name) for name in (file_of(tuning.winner), "plan.json")
    )
    assert plan.model_copy(update=told(winner)) == winner
    next_profile = Profile.load(tmp_path / "next-profile.json")
    next_network = Network.load(tmp_path / "next-network.json")
    assert plan.inputs.profile_sha256 == next_profile.sha256
    assert plan.inputs.network_sha256 == next_network.sha256
    measured_s = next(t.measured_s for t in tuning.trials if t.name == tuning.winner)
    assert plan.predicted.iteration_s == pytest.approx(measured_s, rel=0.5)
    solve(make_problem(next_profile, next_network, Settings()), "optimal")


def told(plan):
    """Return what the costs say of a plan, not what it does."""
    return {"predicted": plan.predicted, "inputs": plan.inputs}


def test_a_network_of_more_ranks_is_carried_to_these(tmp_path):
    tuning, _ = tuned(tmp_path, network=network(4))
    assert tuning.world_size == 2
    assert all(Plan.load(tmp_path / t.plan).world_size == 2 for t in tuning.trials)


def test_profiling_leaves_no_trace():
    options = Options(network=network(), budget_s=60.0)

    def rank(transport):
        model = net().eval()
        before = [tensor.clone() for tensor in model.state_dict().values()]
        tune(workload(model, 2), transport, options)
        after = model.state_dict().values()
        untrained = not any(module.training for module in model.modules())
        return untrained and all(map(torch.equal, before, after))

    assert run_ranks(2, rank) == [True, True]


def test_a_profile_of_another_batch_size_is_refused():
    other = profiled(workload(net(), 2)).model_copy(update={"batch_size": 256})

    def rank(transport):
        options = Options(profile=other, network=network(), budget_s=60.0)
        with pytest.raises(InputError, match="of batch size 256, the workload has 4"):
            tune(workload(net(), 2), transport, options)

    run_ranks(2, rank)


def test_plans_that_only_an_earlier_tuning_tried_are_removed(tmp_path):
    profile = profiled(workload(net(), 2))
    plan = plan_for(net(), 2)
    mine = [tmp_path / "plan-mine.json", tmp_path / "plan.json"]
    for path in mine:
        plan.save(path)

    def save(*names):
        trials = [documents.trial(name, 0.1, plan=file_of(name)) for name in names]
        tuning = documents.tuning(profile, *trials)
        plans = dict.fromkeys(names, solve(make_problem(profile, network()), "wfbp"))
        Tuned(tuning, plans, profile, network(), correction=None).save(tmp_path)

    save("threshold", "slgs")
    save("threshold", "lags")
    left = {path.name for path in tmp_path.glob("plan*.json")}
    tried = {"plan-threshold.json", "plan-lags.json"}
    assert left == {path.name for path in mine} | tried


def test_one_rank_has_nothing_to_tune():
    with pytest.raises(InputError, match="start more"):
        tune(workload(net(), 1), LocalTransport(), Options())


def test_profiling_that_takes_longer_than_the_budget_is_given_up(monkeypatch):
    def slow(*_, progress, **__):
        for done in range(1, 100):
            time.sleep(0.05)
            progress(done, 100, "compressors")

    monkeypatch.setattr(measuring, "measure", slow)
    with pytest.raises(InputError, match=r"--budget 1: .* at compressors: give 2 or"):
        measuring.profiled(
            workload(net(), 1), LocalTransport(), (), 1.0, lambda *_: None
        )


def test_the_best_so_far_is_kept_after_every_round(tmp_path):
    _, saved = tuned(tmp_path)
    assert [best.complete for best in saved[:-1]] == [False] * (len(saved) - 1)
    assert saved[-1].complete


@pytest.mark.slow  # it trains for as long as it may
def test_lossy_plans_are_judged_by_real_trainings(tmp_path):
    link = EmulatedLink(bytes_per_s=1e5, latency_s=1e-3)
    tuning, _ = tuned(tmp_path, link=link, **BY_LOSS | {"seeds": 1, "budget_s": 25.0})
    judged = [trial for trial in tuning.trials if trial.curves]
    assert any(trial.lossless for trial in judged)
    assert not all(trial.lossless for trial in judged)
    for trial in judged:
        (curve,) = trial.curves
        assert curve.losses[-1] < curve.losses[0]


def test_lossy_plans_can_be_judged_by_loss(instant, tmp_path):
    tuning, _ = tuned(tmp_path, **BY_LOSS | {"seeds": 2})
    judged = [trial for trial in tuning.trials if trial.curves]
    assert tuning.complete
    assert len(judged) >= 2
    assert sum(trial.lossless for trial in judged) == 1  # the control
    for trial in judged:
        assert [run.seed for run in trial.curves] == [0, 1]
    plans = [Plan.load(tmp_path / trial.plan) for trial in tuning.trials]
    for plan in plans:  # the workload's SGD has momentum
        sparse = any(bucket.compressor.sparse for bucket in plan.buckets)
        assert plan.momentum_correction == sparse
    assert len({plan.momentum_correction for plan in plans}) == 2


def test_plans_that_are_slower_in_training_than_in_trials_train_as_long(
    instant, tmp_path
):
    """As those whose messages depend on the data may be."""
    instant.setattr(Instant, "slower_in_training", 3.0)
    tuning, _ = tuned(tmp_path, **BY_LOSS)
    of_seeds = zip(*(t.curves for t in tuning.trials if t.curves), strict=True)
    for curves in of_seeds:
        ends = [curve.seconds[-1] for curve in curves]
        assert len(ends) > 1
        assert max(ends) - min(ends) < 0.01


def test_random_numbers_of_a_trial_are_those_of_its_seed():
    """Whatever the process had drawn before, and the same for all plans."""
    model = net(torch.nn.Dropout(0.5))
    plan = plan_for(model, 1)
    trials = Trials(workload(model, 1), LocalTransport())

    def losses(seed):
        torch.rand(3)
        return trials.run(plan, 3, warm_up=0, seed=seed).losses.tolist()

    assert losses(1) == losses(1) != losses(2)


@pytest.mark.parametrize("local_steps", [None, LocalSteps(every=3)])
def test_a_block_ends_when_its_seconds_are_over(local_steps):
    """Between whole rounds; without a limit all iterations are made."""
    model = net()
    plan = plan_for(model, 1).model_copy(update={"local_steps": local_steps})
    trials = Trials(workload(model, 1), LocalTransport())
    assert len(trials.run(plan, 120, warm_up=3, limit_s=1e9).seconds) == 120
    assert len(trials.run(plan, 120, warm_up=3, limit_s=0.0).seconds) == 6


def test_iterations_of_local_steps_take_the_mean_of_their_round():
    """As many as whole rounds have; nothing is left of them."""
    model = net()
    plan = plan_for(model, 1).model_copy(update={"local_steps": LocalSteps(every=3)})
    before = [tensor.clone() for tensor in model.state_dict().values()]
    watched = []
    trials = Trials(workload(model, 1), LocalTransport())
    block = trials.run(plan, 5, warm_up=1, done=lambda *counts: watched.append(counts))
    assert block.seconds.shape == block.losses.shape == (6,)
    assert watched == [(done, 9) for done in range(1, 10)]
    first, second = block.seconds.reshape(2, 3)
    assert len(set(first)) == len(set(second)) == 1
    assert block.timing is None
    assert all(map(torch.equal, before, model.state_dict().values()))


class Instant:
    """Takes no time to say what trials by plans took: exact ones four times as long."""

    trained: list[tuple[bool, int]]
    overhead_s = 1e-3
    fails_at = math.inf
    slower_in_training = 1.0

    def __init__(self, workload, transport, seed, **options):
        self.rank = transport.rank

    def run(self, plan, iterations, *, done, warm_up=None, limit_s=math.inf, seed=None):
        """Return a block whose loss falls alike in every iteration."""
        if seed is not None and self.rank == 0:
            self.trained.append((plan.is_dense, seed))
        if seed is not None and seed >= self.fails_at:
            raise RunError("rank 1 died")
        each_s = 4e-3 if plan.is_exact else 1e-3
        if seed is not None and not plan.is_exact:
            each_s *= self.slower_in_training
        if limit_s < math.inf:
            iterations = min(iterations, math.ceil(limit_s / each_s))
        return Block(
            seconds=np.full(iterations, each_s),
            losses=1 / np.arange(1.0, iterations + 1),
            timing=None,
            overhead_s=self.overhead_s,
        )


@pytest.fixture
def instant(monkeypatch):
    """Let trials take no time."""
    monkeypatch.setattr(session, "Trials", Instant)
    monkeypatch.setattr(Instant, "trained", [], raising=False)
    return monkeypatch


BY_LOSS = {
    "objective": "loss",
    "settings": Settings(accuracy="loss"),
    "network": SLOW,
    "seeds": 3,
}


SHORT_BLOCKS = 2 * len(session.ROUNDS_BY_LOSS)


@pytest.mark.parametrize("lucky", [True, False])
def test_a_dense_plan_that_was_lucky_is_not_what_lossy_ones_are_held_against(
    instant, tmp_path, lucky
):
    """Its first blocks are those of short rounds."""
    calls = Counter()
    run = Instant.run

    def with_luck(self, plan, iterations, **options):
        block = run(self, plan, iterations, **options)
        if plan.solver == "threshold":
            return block
        calls[self.rank, plan.solver] += 1
        is_lucky = calls[self.rank, plan.solver] <= SHORT_BLOCKS
        factor = 0.8 if is_lucky or not lucky else 1.2
        return replace(block, seconds=factor * block.seconds)

    instant.setattr(Instant, "run", with_luck)
    tuning, _ = tuned(tmp_path, **BY_LOSS | {"settings": Settings(accuracy="none")})
    rounds = {trial.name: len(trial.rounds) for trial in tuning.trials}
    assert max(rounds.values()) == len(session.ROUNDS_BY_LOSS) + 1
    assert (tuning.winner == "threshold") == lucky


def test_before_the_loss_decides_no_lossy_plan_is_saved(instant):
    instant.setattr(Instant, "fails_at", 1)
    saved = []

    def rank(transport):
        profile = profiled(workload(net(), 2))
        tune(workload(net(), 2), transport, Options(profile=profile, **BY_LOSS), save)

    def save(best):
        saved.append(best.tuning)

    with pytest.raises(RunError, match="rank 1 died"):
        run_ranks(2, rank)
    measured, *rounds, judged = saved
    assert measured.advice.startswith("keep DDP's buckets: no trial ended within")
    for tuning in rounds:
        assert tuning.trial(tuning.winner).lossless
        assert tuning.advice.endswith("lossy plans are not judged by loss yet")
    assert "(1 seed, " in judged.advice
    assert not any(tuning.complete for tuning in saved)


def test_plans_train_in_one_order_and_then_in_the_other(instant, tmp_path):
    tuned(tmp_path, **BY_LOSS)
    first, second, third = (
        [dense for dense, seed in Instant.trained if seed == number]
        for number in range(3)
    )
    assert first[0]
    assert not any(first[1:])
    assert second == first[::-1]
    assert third == first


def test_rounds_of_local_steps_can_be_judged_by_loss(instant, tmp_path):
    none_lossy = {"settings": Settings(accuracy="none"), "local_steps": (4,)}
    tuning, _ = tuned(tmp_path, **BY_LOSS | none_lossy)
    (judged,) = [trial for trial in tuning.trials if trial.local and trial.curves]
    assert not judged.lossless
    assert tuning.winner == judged.name
    assert tuning.advice.startswith(f"train by {judged.name}: ")
    assert Plan.load(tmp_path / "plan.json").local_steps == LocalSteps(every=4)


def test_trainings_are_as_short_as_what_else_they_take_demands(instant, tmp_path):
    instant.setattr(Instant, "overhead_s", 30.0)
    tuning, _ = tuned(tmp_path, **BY_LOSS)
    assert Instant.trained == []
    assert tuning.trial(tuning.winner).lossless
    assert not tuning.complete
    (enough_s,) = re.findall(r"with (\S+) s one could be", tuning.advice)
    tuning, _ = tuned(tmp_path, **BY_LOSS | {"budget_s": float(enough_s) + 10})
    assert len(Instant.trained) == 2
    assert "(1 seed, " in tuning.advice


def test_a_short_budget_judges_fewer_plans_by_fewer_seeds(instant, tmp_path):
    tuned(tmp_path, **BY_LOSS)
    all_trained = len(Instant.trained)
    Instant.trained.clear()
    instant.setattr(Instant, "overhead_s", 540.0 / all_trained)
    tuning, _ = tuned(tmp_path, **BY_LOSS | {"budget_s": 420.0})
    assert all_trained / 3 <= len(Instant.trained) < all_trained
    assert not tuning.complete
    assert " seed" in tuning.advice


@pytest.mark.parametrize(
    ("options", "predicted"),
    [
        ({"settings": Settings(accuracy="loss"), "network": SLOW}, "best"),
        (BY_LOSS, "best of the dense plans"),
    ],
)
def test_a_budget_that_ends_before_any_trial_leaves_ddps_buckets(
    instant, tmp_path, options, predicted
):
    tuning, _ = tuned(tmp_path, **options | {"budget_s": 1e-3})
    fastest = min(tuning.trials, key=lambda trial: trial.predicted_s)
    assert not fastest.lossless
    assert tuning.winner == "threshold"
    assert Plan.load(tmp_path / "plan.json").solver == "threshold"
    budget = "no trial ended within --budget 0.001: give more"
    assert tuning.advice.startswith(f"keep DDP's buckets: {budget}")
    assert tuning.advice.endswith(f" is predicted {predicted}")


def test_plans_are_for_the_link_that_they_were_tried_on(instant, tmp_path, caplog):
    link = EmulatedLink(bytes_per_s=1e9)
    tuning, _ = tuned(tmp_path, link=link)
    plans = [Plan.load(path) for path in tmp_path.glob("plan*.json")]
    costs = Network.load(tmp_path / "next-network.json")
    for document in (*plans, costs, tuning):
        assert (document.backend, document.emulated_link) == ("thread", link)
    assert caplog.messages == [
        "the network is that of 2 ranks on no emulated link by gloo; these are "
        f"2 ranks on {link} by thread"
    ]


def test_the_hosts_are_those_that_ran(instant, tmp_path):
    other = network().model_copy(update={"hosts": ("elsewhere",)})
    tuning, _ = tuned(tmp_path, network=other)
    assert tuning.hosts == (socket.gethostname(),)


def sizes_of_sweep(monkeypatch, *probed, budget_s=100.0):
    """Return up to which size a network is measured of which ``probed`` is known."""
    measured = []
    monkeypatch.setattr(probing, "probe", lambda *_: [Probed(*p) for p in probed])
    monkeypatch.setattr(
        measuring.sweep, "measure", lambda *_, sizes, **__: measured.extend(sizes)
    )
    measuring.swept(LocalTransport(), 2**20, budget_s, lambda *_: None)
    return measured[-1]


def test_a_slow_network_is_measured_as_far_as_there_is_time(monkeypatch):
    probed = [(4, 1.0, False), (1024, 15.0, True), (4096, 30.0, True)]
    assert sizes_of_sweep(monkeypatch, *probed) == 1024


def test_a_network_is_measured_until_the_bandwidth_shows(monkeypatch):
    probed = [(4, 10.0, False), (1024, 20.0, False), (4096, 30.0, True)]
    assert sizes_of_sweep(monkeypatch, *probed) == 4096
    with pytest.raises(InputError, match=r"--budget 50: .* about 30 s: give 150 or"):
        sizes_of_sweep(monkeypatch, *probed, budget_s=50.0)


def test_a_budget_that_profiling_alone_exceeds_is_refused(tmp_path):
    def slow(model, batch):
        import time

        time.sleep(0.05)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    training = workload(net(), 1, loss=slow)
    with pytest.raises(InputError, match="--budget 1"):
        measuring.profiled(training, LocalTransport(), (), 1.0, lambda *_: None)


def test_of_a_larger_budget_measuring_takes_its_share_too():
    measured = Options(budget_s=100.0, network=network())
    assert measured.with_more(95.0) == pytest.approx(200.0)
    assert Options(budget_s=100.0).with_more(75.0) == pytest.approx(200.0)
