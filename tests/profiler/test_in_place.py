"""Costs in place: their sum over the model is what the training showed."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from comm_plan.plans.compression import KINDS, spec_class
from comm_plan.profiler import compression, compression_costs, measure, turns
from comm_plan.profiler import in_place as module
from comm_plan.profiler.in_place import in_place
from comm_plan.profiler.timings import Trial
from comm_plan.profiler.whole_model import at_density, in_all
from comm_plan.runtime.engine import Engine
from comm_plan.tests.profiler.test_measure import Toy, chain
from comm_plan.transports.local import LocalTransport
from comm_plan.workloads import load
from comm_plan.workloads.user import from_parts

DELAY_S, THREAD_S = 0.25, 0.5


def with_costs(profile, kinds):
    """Return ``profile`` with what compressors cost on their own."""
    largest = max(tensor.numel for tensor in profile.tensors)
    costs = compression_costs(largest, kinds=kinds)
    return profile.model_copy(update={"compression": costs})


@pytest.fixture(scope="module", autouse=True)
def _few_measurements():
    """What is measured here has to be there, not to be exact."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "REPETITIONS", (1, 1))
        patch.setattr(turns, "TURNS", (2, 2))
        yield


@pytest.fixture(scope="module")
def digits(_few_measurements):
    workload = load("digits")
    profile = measure(workload, iterations=20)
    return workload, with_costs(profile, ["dense", "topk"])


def backwards(profile, kind):
    """Return ``profile`` with the costs of ``kind`` from the largest down."""
    costs = profile.compression[kind]
    seconds = [cost.model_dump(exclude={"numel"}) for cost in reversed(costs)]
    turned = tuple(
        cost.model_copy(update=other | {"density": cost.density})
        for cost, other in zip(costs, seconds, strict=True)
    )
    compression = profile.compression | {kind: turned}
    return profile.model_copy(update={"compression": compression})


def all_alike(delay_s, thread_s):
    return lambda workload, plans, *_: [[(delay_s, thread_s) for _ in plans]]


@pytest.mark.parametrize("larger_take_less", [False, True])
def test_the_costs_of_all_tensors_add_up_to_what_the_training_showed(
    digits, larger_take_less, monkeypatch
):
    workload, profile = digits
    if larger_take_less:
        profile = backwards(profile, "topk")
    monkeypatch.setattr(module, "_seen", all_alike(DELAY_S, THREAD_S))
    costs = in_place(workload, profile, LocalTransport())["topk"]
    middle = at_density(costs, 0.01)
    numels = [tensor.numel for tensor in profile.tensors]
    compress_s = in_all(numels, middle, lambda cost: cost.compress_s)
    codec_s = in_all(numels, middle, lambda cost: cost.codec_s(1))
    assert compress_s == pytest.approx(DELAY_S)
    assert codec_s + middle[0].bucket_s() == pytest.approx(THREAD_S)


def test_other_densities_pass_over_the_same_memory(digits, monkeypatch):
    workload, profile = digits
    monkeypatch.setattr(module, "_seen", all_alike(DELAY_S, THREAD_S))
    costs = in_place(workload, profile, LocalTransport())["topk"]
    longer_s = {}
    for cost, alone in zip(costs, profile.compression["topk"], strict=True):
        of_size = longer_s.setdefault(cost.numel, [])
        of_size.append(cost.compress_s - alone.compress_s)
    assert all(len(of_size) == 3 for of_size in longer_s.values())
    for of_size in longer_s.values():
        assert of_size == pytest.approx([of_size[0]] * 3)
        assert of_size[0] > 0


def test_what_is_faster_in_place_is_so_by_a_factor_and_never_free(digits, monkeypatch):
    workload, profile = digits
    tiny_s = 1e-9
    monkeypatch.setattr(module, "_seen", all_alike(tiny_s, tiny_s))
    costs = in_place(workload, profile, LocalTransport())["topk"]
    pairs = list(zip(costs, profile.compression["topk"], strict=True))
    factors = [cost.compress_s / alone.compress_s for cost, alone in pairs]
    assert factors == pytest.approx([factors[0]] * len(factors))
    assert 0 < factors[0] < 1


def test_a_bucket_that_slows_nothing_keeps_its_costs(digits, monkeypatch):
    workload, profile = digits
    monkeypatch.setattr(module, "_seen", all_alike(0.0, 0.0))
    costs = in_place(workload, profile, LocalTransport())
    assert costs["dense"] == profile.compression["dense"]
    for cost, alone in zip(costs["topk"], profile.compression["topk"], strict=True):
        assert cost == alone.model_copy(update={"momentum_s": 0.0})


def test_what_momentum_takes_longer_is_shared_out_by_elements(digits, monkeypatch):
    workload, profile = digits
    later_s = 0.5

    def seen(workload, plans, *_):
        return [
            [
                (DELAY_S + later_s * plan.momentum_correction, THREAD_S)
                for plan in plans.values()
            ]
        ]

    monkeypatch.setattr(module, "_seen", seen)
    costs = in_place(workload, profile, LocalTransport())
    assert all(cost.momentum_s == 0 for cost in costs["dense"])
    numel = sum(tensor.numel for tensor in profile.tensors)
    for cost in costs["topk"]:
        share = cost.numel / numel
        assert cost.momentum_s == pytest.approx(later_s * share)


def test_momentum_that_cannot_be_corrected_keeps_its_costs(digits, monkeypatch):
    workload, profile = digits
    given = []

    def seen(workload, plans, *_):
        given.extend(plans.values())
        return [[(0.0, 0.0) for _ in plans]]

    monkeypatch.setattr(module, "_seen", seen)
    monkeypatch.setattr(module, "can_be_corrected", lambda optimizer: False)
    assert in_place(workload, profile, LocalTransport()) == profile.compression
    assert not any(plan.momentum_correction for plan in given)


def test_sizes_and_densities_stay_and_methods_that_depend_on_data_are_left(
    digits, monkeypatch
):
    workload, profile = digits
    monkeypatch.setattr(module, "BLOCK_S", 0.0)
    alone = with_costs(profile, KINDS)
    costs = in_place(workload, alone, LocalTransport())
    assert list(costs) == list(KINDS)
    for kind, before in alone.compression.items():
        assert [(c.numel, c.density) for c in costs[kind]] == [
            (c.numel, c.density) for c in before
        ]
        spec = spec_class(kind)
        if spec.variable_length or spec.needs_second_moments:
            assert costs[kind] == before
        else:
            assert costs[kind] != before
            assert all(c.compress_s > 0 for c in costs[kind])
            assert all(c.decompress_s + c.bucket_decode_s > 0 for c in costs[kind])


class Inside(Toy):
    """A training that calls the model's parts, never the model."""

    def loss(self, model, batch):
        return model[1](model[0](batch)).sum()


def test_a_model_whose_parts_are_called_has_costs_too():
    kinds = ["topk", "strom"]
    profile = measure(Inside(chain(2)), kinds=kinds, iterations=20)
    assert list(profile.compression) == kinds
    assert list(profile.sent) == ["strom"]


def test_the_model_is_left_without_an_engine(digits):
    workload, profile = digits
    in_place(workload, profile, LocalTransport())
    assert not any(p._post_accumulate_grad_hooks for p in workload.model.parameters())


def bag(*parts):
    """Return a training of an embedding with sparse gradients, then ``parts``."""
    model = nn.Sequential(nn.EmbeddingBag(50, 4, sparse=True), *parts)
    batch = torch.arange(32).reshape(8, 4)
    return from_parts(
        "bag",
        (model, [(batch, torch.zeros(8))] * 4, lambda out, _: out.square().mean()),
    )


class Sometimes(nn.Module):
    """A layer that only every third forward uses, between two that all use."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.forwards = 0

    def forward(self, x):
        self.forwards += 1
        first, seldom, last = self.layers
        x = first(x)
        return last(x if self.forwards % 3 else seldom(x))


@pytest.mark.parametrize(
    ("model", "unused"),
    [(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), False), (Sometimes(), True)],
)
def test_gradients_are_parts_of_buckets_as_in_training(model, unused, monkeypatch):
    """But where parameters may get none, as there."""
    options = []

    class Watched(Engine):
        def __init__(self, *arguments, **given):
            super().__init__(*arguments, **given)
            options.append((self._share, given["find_unused_parameters"]))

    monkeypatch.setattr(module, "Engine", Watched)
    batches = [(torch.ones(8, 4), torch.zeros(8))] * 4
    training = from_parts("it", (model, batches, lambda out, _: out.square().mean()))
    measure(training, iterations=20, kinds=("dense",))
    assert set(options) == {(not unused, unused)}


@pytest.mark.parametrize("dense_too", [False, True])
def test_sparse_gradients_are_left_as_they_are(dense_too):
    training = bag(*[nn.Linear(4, 3)] * dense_too)
    profile = measure(training, iterations=20)
    assert profile.tensors[-1].rows
    alone = with_costs(profile, ["fp16"])
    costs = in_place(training, alone, LocalTransport())["fp16"]
    assert (costs == alone.compression["fp16"]) == (not dense_too)


WORK_S = {"rows": 100.0, "dense": 10.0, "topk": 1.0}
"""What a bucket of each kind is said to take, of backward and of the thread."""


class Observed(Engine):
    """An engine whose buckets take :data:`WORK_S`.

    Attributes:
        latest: the last one that was made.
    """

    latest: Engine

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        Observed.latest = self

    def work_s(self):
        """Return what its buckets take; nothing while it rests."""
        kinds = [bucket.compressor.kind for bucket in self.plan.buckets]
        return [WORK_S[kind] * self._steps.is_listening() for kind in kinds]


class Told(Trial):
    """Iterations of which :meth:`told_s` says how long they and their updates are."""

    def run(self, iterations, warmup, progress=None):
        timings = super().run(iterations, warmup, progress)
        total_s, update_s = self.told_s()
        return replace(
            timings,
            total_s=np.full(iterations, total_s),
            update_s=np.full(iterations, update_s),
        )


@pytest.fixture
def watched(monkeypatch):
    """Time the buckets of every engine by :data:`WORK_S`; return each iteration's."""
    iterations = []

    class Watched(Told):
        def told_s(self):
            engine = getattr(Observed, "latest", None)
            if engine is None:
                return 1.0, 0.0
            busy_s = np.array(engine.work_s())
            engine._steps.last_moments = SimpleNamespace(
                busy_s=lambda: busy_s, exposed_s=lambda: 0.0
            )
            iterations.append(sum(busy_s))
            return sum(busy_s), 0.0

    monkeypatch.setattr(Observed, "latest", None, raising=False)
    monkeypatch.setattr(module, "Engine", Observed)
    monkeypatch.setattr(module, "Trial", Watched)
    return iterations


def seen(training, profile, *, corrected=False):
    """Return what is seen by a plan of each kind that ``profile`` has costs of."""
    costs = profile.compression
    middles = {kind: module._middle(costs[kind]) for kind in costs}
    plans = module._plans(profile, middles, corrected=corrected)
    turns = module._seen(training, plans, LocalTransport(), None, False)
    return [tuple(each) for each in np.median(turns, axis=0).tolist()]


def test_of_several_buckets_only_the_methods_own_counts(watched):
    """Neither the rows of an embedding, nor another dtype's bucket."""
    other = nn.Linear(4, 3)
    both = nn.Linear(4, 4)
    both.register_parameter("wide", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    both.register_forward_hook(lambda layer, _, out: out * layer.wide.sum().float())
    training = bag(both, other)
    profile = with_costs(measure(training, iterations=20), ["dense", "topk"])
    assert seen(training, profile) == [
        (2 * WORK_S["dense"], 2 * WORK_S["dense"]),
        (WORK_S["topk"], WORK_S["topk"]),
    ]


def test_every_block_is_between_two_rests(digits, watched, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", (4, 4))
    assert seen(*digits) == [
        (WORK_S["dense"], WORK_S["dense"]),
        (WORK_S["topk"], WORK_S["topk"]),
    ]
    blocks = watched[::4]
    turn = [
        each
        for kind in ("dense", "topk")
        for each in (0.0, *[WORK_S[kind], 0.0] * module.WORKING)
    ]
    assert blocks == turn * (len(blocks) // len(turn))


@pytest.fixture
def timed(monkeypatch):
    """Let engines' work be told; return what tells the times of the iterations."""

    def by(told_s):
        monkeypatch.setattr(module, "BLOCK", (4, 4))
        monkeypatch.setattr(Observed, "latest", None, raising=False)
        monkeypatch.setattr(module, "Engine", Observed)
        monkeypatch.setattr(module, "Trial", type("Timed", (Told,), {"told_s": told_s}))
        monkeypatch.setattr(module, "_exposed_s", lambda engine: EXPOSED_S)
        monkeypatch.setattr(module, "busy_s", lambda engine, kind: THREAD_S)

    return by


EXPOSED_S = 3.0


def is_working():
    """Return whether the last engine takes part in this iteration."""
    return Observed.latest is not None and Observed.latest._steps.is_listening()


def test_what_is_done_after_backward_is_left_out(digits, timed):
    timed(lambda trial: (10.0 + (DELAY_S + EXPOSED_S) * is_working(), 1.0))
    assert seen(*digits) == [pytest.approx((DELAY_S, THREAD_S))] * 2


def test_a_machine_that_gets_slower_meanwhile_changes_nothing(digits, timed):
    """Steadily, from iteration to iteration."""
    ticks = count(1)
    timed(lambda trial: (next(ticks) + (DELAY_S + EXPOSED_S) * is_working(), 1.0))
    assert seen(*digits) == [pytest.approx((DELAY_S, THREAD_S))] * 2


def test_what_corrected_momentum_spares_the_optimizer_is_taken_off(timed):
    """Its updates are shorter while the engine has its momentum, at rest too."""
    spared_s = 0.125
    workload = load("digits")
    profile = with_costs(measure(workload, iterations=20), ["topk"])

    def told(trial):
        corrected = Observed.latest is not None and (
            Observed.latest.plan.momentum_correction
        )
        update_s = 1.0 - spared_s * corrected
        return 5.0 + update_s + (DELAY_S + EXPOSED_S) * is_working(), update_s

    timed(told)
    plain, corrected = seen(workload, profile, corrected=True)
    assert plain == pytest.approx((DELAY_S, THREAD_S))
    assert corrected == pytest.approx((DELAY_S - spared_s, THREAD_S))


def test_what_methods_take_longer_in_place_is_drawn_together(monkeypatch):
    """One that stands out by as much as turns scatter comes nearer to the others."""
    workload = load("digits")
    kinds = ["dense", "fp16", "bf16", "qsgd", "topk"]
    profile = with_costs(measure(workload, iterations=20), kinds)
    rng = np.random.default_rng(1)
    noise_s = rng.permuted(np.tile([-0.2, -0.1, 0.1, 0.2], (99, 1)), axis=1).T

    def scattered(workload, plans, *_):
        delays_s = [0.5 + 0.3 * (kind == "topk") for kind, _ in plans]
        return [
            [(d + n, 0.1) for d, n in zip(delays_s, of_turn[: len(plans)], strict=True)]
            for of_turn in noise_s
        ]

    def quiet(workload, plans, *_):
        return [[(0.5 + 0.3 * (kind == "topk"), 0.1) for kind, _ in plans]] * 4

    of_topk = []
    for seen_by in (quiet, scattered):
        monkeypatch.setattr(module, "_seen", seen_by)
        costs = in_place(workload, profile, LocalTransport())["topk"]
        of_topk.append(costs[0].compress_s)
    assert of_topk[1] < 0.95 * of_topk[0]
