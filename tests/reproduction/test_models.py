"""Claims about what the papers print, held against their own models."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.reproduction import clipping, gtopk_cluster, lags, vgc
from comm_plan.reproduction import mg_wfbp_simulation as mg_wfbp
from comm_plan.reproduction import terngrad_throughput as throughput
from comm_plan.reproduction.published import networks, results

seconds = st.floats(1e-3, 10)


# MG-WFBP


@pytest.mark.parametrize("name", mg_wfbp.MODELS)
def test_wfbp_is_ahead_of_single_on_few_nodes_and_behind_on_64(name):
    of = {n: mg_wfbp.times(mg_wfbp.simulated(name), mg_wfbp.cluster(), n)
          for n in (4, 16, 64)}  # fmt: skip
    assert of[4]["wfbp"] < of[4]["single"]
    assert of[16]["wfbp"] < of[16]["single"]
    assert of[64]["wfbp"] > of[64]["single"] > of[64]["mg-wfbp"]


@pytest.mark.parametrize("name", mg_wfbp.MODELS)
def test_the_computation_gives_the_printed_gain_over_single(name):
    of = mg_wfbp.times(mg_wfbp.simulated(name), mg_wfbp.cluster(), 64)
    gain = mg_wfbp.printed(name)["over_single"]
    assert of["single"] / of["mg-wfbp"] == pytest.approx(gain, rel=1e-3)


def test_tensors_instead_of_layers_flatter_merging():
    for name in mg_wfbp.MODELS:
        assert mg_wfbp.over_wfbp(name, layers=False) > 1.3 * mg_wfbp.over_wfbp(name)


def test_the_start_ups_that_both_gains_imply_enclose_that_of_the_published_code():
    implied = [mg_wfbp.startup_for(name)[0] for name in mg_wfbp.MODELS]
    line = networks()["allreduce"][-1]
    assert min(implied) < line["alpha_s"] / (2 * (line["workers"] - 1)) < max(implied)


def test_greedy_merging_loses_on_the_published_networks():
    worst, _ = mg_wfbp.worst_loss(mg_wfbp.cluster(), "resnet50", 16)
    assert worst > 1.1


# LAGS


@given(seconds, seconds, seconds)
def test_the_largest_gain_is_the_definition(forward_s, backward_s, communicate_s):
    spent_s = forward_s + backward_s + communicate_s
    expected = spent_s / (spent_s - min(backward_s, communicate_s))
    ours = lags.largest_gain(forward_s, backward_s, communicate_s)
    assert ours == pytest.approx(expected)


# gTop-k


@pytest.mark.parametrize(
    ("name", "modelled_s", "implied_s"),
    [("vgg16", 1.05, 10.1), ("alexnet", 4.28, 52.1), ("resnet50", 1.81, 19.0)],
)
def test_table_vii_takes_ten_times_what_its_alpha_and_beta_give(
    name, modelled_s, implied_s
):
    model = gtopk_cluster.Model(name)
    assert model.modelled_s("dense", 32) == pytest.approx(modelled_s, rel=0.01)
    assert model.implied_s("dense") == pytest.approx(implied_s, rel=0.01)


@pytest.mark.parametrize("other", ["dense", "topk"])
def test_networks_gain_in_the_printed_order(other):
    models = [gtopk_cluster.Model(name) for name in results("gtopk")["parameters"]]

    def printed(model):
        return model.images_per_s("gtopk") / model.images_per_s(other)

    def modelled(model):
        return model.efficiency("gtopk", 32) / model.efficiency(other, 32)

    assert sorted(models, key=printed) == sorted(models, key=modelled)


def test_topk_is_ahead_on_4_workers_and_gtopk_from_8_on():
    assert gtopk_cluster.crossover(25_000_000, 0.001) == 8


# TernGrad


@pytest.mark.parametrize(
    ("closed", "draw"),
    [
        (clipping.normal, lambda rng, n: rng.standard_normal(n)),
        (clipping.laplace, lambda rng, n: rng.laplace(scale=math.sqrt(0.5), size=n)),
    ],
)
def test_the_closed_forms_of_clipping_are_those_of_a_sample(closed, draw):
    gradient = draw(np.random.default_rng(3), 400_000)
    kept = np.clip(gradient, -2.5, 2.5)
    length = np.linalg.norm(kept) / np.linalg.norm(gradient)
    cosine = gradient @ kept / np.linalg.norm(gradient) / np.linalg.norm(kept)
    found = closed(2.5)
    assert found.length == pytest.approx(length, rel=3e-3)
    assert found.angle_degrees == pytest.approx(
        math.degrees(math.acos(cosine)), abs=0.2
    )
    assert found.zeros == pytest.approx(1 - np.abs(kept).mean() / 2.5, rel=3e-3)


def test_clipping_changes_normal_gradients_as_printed():
    said, ours = results("terngrad")["clipping"], clipping.normal(2.5)
    assert said["length_change"][0] <= 1 - ours.length <= said["length_change"][1]
    assert said["angle_degrees"][0] <= ours.angle_degrees <= said["angle_degrees"][1]


def test_throughput_of_one_gpu_is_the_same_in_weak_and_strong_scaling():
    for model, at in itertools.product(
        results("terngrad")["networks"], results("terngrad")["clusters"]
    ):
        of, cluster = throughput.network(model), throughput.cluster(at)
        weak = throughput.weak_images_per_s(of, cluster, 1, of.dense_nbytes)
        strong = throughput.strong_images_per_s(of, cluster, 1, of.dense_nbytes)
        assert weak == pytest.approx(strong)


def test_eight_gpus_are_two_machines_of_four():
    at = throughput.Cluster(1.0, 4.0, 2.0, 1.0, 0.5)
    # Two rounds between GPUs, one to the CPU, one between machines.
    assert at.communicate_s(8.0, *throughput.spread_out(8)) == 2 * 2 + 4 + 8.5


def test_networks_with_more_parameters_an_operation_gain_more():
    for cluster in map(throughput.cluster, results("terngrad")["clusters"]):
        gains = {
            name: throughput.speedup(throughput.network(name), cluster, 512)
            for name in results("terngrad")["networks"]
        }
        assert min(gains, key=gains.get) == "GoogLeNet"


# VGC


@given(st.integers(2, 2000), st.floats(1, 1e4))
def test_a_rank_need_not_receive_its_own_message(workers, ratio):
    assert vgc.speedup(ratio, workers) == pytest.approx(2 * ratio / workers)
    share = vgc.speedup_as_printed(ratio, workers) / vgc.speedup(ratio, workers)
    assert share == pytest.approx((workers - 1) / workers)
