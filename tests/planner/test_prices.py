"""Options cost what the specs say on the wire and the profile on the device."""

import numpy as np
import pytest

from comm_plan.collectives.collective import Codings
from comm_plan.planner import Settings
from comm_plan.planner.documents import make_problem
from comm_plan.planner.prices import DeviceCost
from comm_plan.plans import CompressionCost
from comm_plan.plans.compression import (
    KINDS,
    METHODS,
    DoubleSqueeze,
    PartitionTopK,
    TopK,
)
from comm_plan.tests.support.planning import planned

NUMELS = [3, 1000, 123_457, 17]
BETA = 1e-9
CARRIERS = tuple(dict.fromkeys(collective for _, collective in METHODS.values()))
BY_TENSOR = {"vgc", "model_topk", "partition_topk", "spardl"}
"""Whose messages are rounded up by bucket, and priced as if by tensor."""


def _prices(build, world_size=8):
    free = {kind: (0.0, 0.0) for kind in KINDS if kind != "dense"}
    layers = ["head", *(f"l{i}" for i in range(3))]
    profile = build.profile(
        [1e-3] * 4, NUMELS, layers=layers, compression=build.compression(**free)
    )
    line = build.fit((0, 0.0, BETA))
    network = build.network(world_size, **dict.fromkeys(CARRIERS, line))
    return make_problem(profile, network).prices


@pytest.mark.parametrize("name", METHODS)
def test_a_bucket_takes_the_time_of_its_exact_wire_bytes(build, name):
    spec, collective = METHODS[name]
    option = _prices(build).option(spec, collective)
    message = spec.message_nbytes(NUMELS[1:], collective)
    if spec.kind in BY_TENSOR:
        message = sum(spec.message_nbytes([n], collective) for n in NUMELS[1:])
    total = 8 * message if collective == "allgather" else message
    extra = {"terngrad": 4 * 3, "vgc": 64, "strom": 64, "hybrid": 64}.get(spec.kind, 0)
    extra += sum(spec.gathered_nbytes([n]) for n in NUMELS[1:])
    expected = BETA * (total + extra)
    assert float(option.communicate_s(1, 4)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("dense", None), ("fp16", "float16"), ("terngrad-allreduce", "int8")],
)
def test_sums_of_other_formats_take_longer_by_the_byte(build, name, dtype):
    longer = {"float16": 1e-6, "int8": 1e-5}
    plain = _prices(build)
    reducing = plain.network.collectives["allreduce"].model_copy(
        update={"summing": longer}
    )
    collectives = plain.network.collectives | {"allreduce": reducing}
    network = plain.network.model_copy(update={"collectives": collectives})
    spec, collective = METHODS[name]
    for world_size, share in ((8, 1.0), (2, (1 / 2) / (7 / 8))):
        settings = Settings(world_size=world_size)
        prices = make_problem(plain.profile, network, settings).prices
        before = make_problem(plain.profile, plain.network, settings).prices
        extra_s = np.diff(prices.option(spec, collective).codec_s)
        extra_s -= np.diff(before.option(spec, collective).codec_s)
        nbytes = [spec.message_nbytes([n], collective) for n in NUMELS]
        expected = share * longer.get(dtype, 0.0) * np.array(nbytes)
        np.testing.assert_allclose(extra_s, expected, rtol=1e-9, atol=1e-12)


def test_terngrad_keeps_the_last_layer_dense_by_default(build):
    option = _prices(build).option(*METHODS["terngrad"])
    assert option.allowed.tolist() == [False, True, True, True]


@pytest.mark.parametrize("name", METHODS)
def test_a_gradient_is_compressed_if_the_method_takes_its_dtype(build, name):
    spec, collective = METHODS[name]
    dtypes = ("float32", "bfloat16", "float64")
    free = {kind: (0.0, 0.0) for kind in KINDS if kind != "dense"}
    profile = build.profile(
        [1e-3] * 4,
        [100] * 4,
        dtypes=["float32", *dtypes],
        layers=["last", "a", "b", "c"],
        compression=build.compression(**free),
    )
    line = build.fit((0, 0.0, BETA))
    network = build.network(8, **dict.fromkeys(CARRIERS, line))
    option = make_problem(profile, network).prices.option(spec, collective)
    assert option.allowed[1:].tolist() == [dtype in spec.dtypes for dtype in dtypes]


def test_a_plan_compresses_a_bfloat16_model(build):
    profile = build.profile(
        [1e-3] * 3,
        [10**6] * 3,
        dtypes=["bfloat16"] * 3,
        compression=build.compression(topk=(0.0, 0.0)),
    )
    network = build.network(4, allgather=build.fit((0, 1e-3, 1e-8)))
    plan = planned(profile, network, "optimal", compressor="topk")
    assert {bucket.compressor.kind for bucket in plan.buckets} == {"topk"}


def test_to_send_fewer_elements_takes_no_longer():
    """Measured times scatter: 0.1 % took 50 % longer than 1 % of two million."""

    def cost(density, seconds):
        return CompressionCost(
            numel=100,
            density=density,
            compress_s=seconds,
            decompress_s=2 * seconds,
            bucket_encode_s=3 * seconds,
        )

    device = DeviceCost.measured(
        (cost(0.001, 6.0), cost(0.01, 4.0), cost(0.1, 10.0)), Codings(1, 1)
    )
    density = np.array([0.001, 0.003, 0.01, 0.1])
    compress, codec, _ = device.seconds(np.full(4, 100.0), density)
    assert compress == pytest.approx([5.0, 5.0, 5.0, 10.0])
    assert codec == pytest.approx([10.0, 10.0, 10.0, 20.0])
    one = np.array([100.0])
    buckets = [device.seconds(one, np.array([d]))[2] for d in density]
    assert buckets == pytest.approx([15.0, 15.0, 15.0, 30.0])


def test_costs_are_interpolated_between_sizes_and_densities():
    def cost(numel, density, seconds):
        return CompressionCost(
            numel=numel,
            density=density,
            compress_s=seconds,
            encode_s=seconds / 4,
            decompress_s=seconds / 2,
            bucket_encode_s=density,
            bucket_decode_s=2.0,
        )

    device = DeviceCost.measured(
        (cost(100, 0.01, 1.0), cost(300, 0.01, 3.0), cost(100, 1.0, 5.0)),
        Codings(encoded=2, decoded=3),
        share_encoded=0.5,
    )
    compress, codec, bucket_s = device.seconds(
        np.array([100.0, 200.0, 100.0, 100.0]), np.array([0.01, 0.01, 0.1, 1e-6])
    )
    assert compress == pytest.approx([1.0, 2.0, 3.0, 1.0])
    assert codec == pytest.approx([1.75, 3.5, 5.25, 1.75])
    # once a bucket, encoded twice: 2.02 and 4 seconds, an eighth of the way between
    assert bucket_s == pytest.approx(2.02 + (4 - 2.02) / 8)


def test_what_a_bucket_takes_is_paid_by_each(build):
    profile = build.profile(
        [1e-3] * 6, [1000] * 6, compression=build.compression(topk=(6e-3, 0.0))
    )
    network = build.network(4, allgather=build.fit((0, 1e-4, 1e-8)))
    option = make_problem(profile, network).prices.option(TopK(density=0.1))
    of_tensors = np.diff(option.codec_s).sum()
    for starts in ([0], [0, 1, 2], [0, 3]):
        stops = np.array([*starts[1:], 6])
        *_, codec_s = option.phases_s(np.array(starts), stops)
        assert codec_s.sum() == pytest.approx(of_tensors + 3e-3 * len(starts))
        channel_s = option.channel_s(np.array(starts), stops)
        communicate_s = option.communicate_s(np.array(starts), stops)
        assert channel_s - communicate_s == pytest.approx(codec_s)


def test_momentum_correction_costs_more_where_it_is_asked_for():
    cost = CompressionCost(
        numel=10, density=1.0, compress_s=1.0, decompress_s=2.0, momentum_s=0.5
    )
    numel, density = np.array([10.0]), np.array([1.0])
    for asked, expected_s in ((False, 1.0), (True, 1.5)):
        device = DeviceCost.measured((cost,), Codings(1, 1), momentum_correction=asked)
        compress, codec, _ = device.seconds(numel, density)
        assert (compress.item(), codec.item()) == (expected_s, 2.0)


def test_further_messages_may_cost_less_than_the_first():
    cost = CompressionCost(
        numel=1, compress_s=0.0, encode_s=1.0, decompress_s=2.0, another_s=0.5
    )
    assert cost.codec_s(1) == 3.0
    assert cost.codec_s(4) == 4.5
    assert cost.codec_s(4, encoded=2) == 5.5


def test_an_all_gather_decodes_the_message_of_every_rank(build):
    costs = build.compression(topk=(1e-3, 0.0))
    profile = build.profile([1e-3] * 2, [1000, 1000], compression=costs)
    line = build.fit((0, 0.0, BETA))
    network = build.network(8, allgather=line, gtopk=line)
    prices = make_problem(profile, network).prices
    gathered = prices.option(TopK(density=0.01), "allgather")
    tree = prices.option(TopK(density=0.01), "gtopk")
    assert gathered.codec_s[-1] == pytest.approx(8 * tree.codec_s[-1])
    assert tree.codec_s[-1] == pytest.approx(2 * 0.5e-3)


def test_in_two_passes_a_rank_encodes_its_part_again_and_decodes_twice(build):
    cost = CompressionCost(numel=1000, compress_s=0.0, encode_s=1e-3, decompress_s=2e-3)
    profile = build.profile([1e-3], [1000], compression={"double_squeeze": (cost,)})
    network = build.network(8, two_pass=build.fit((0, 0.0, BETA)))
    option = make_problem(profile, network).prices.option(DoubleSqueeze())
    assert option.codec_s[-1] == pytest.approx((1 + 1 / 8) * 1e-3 + 2 * 2e-3)


def test_a_rank_looks_through_its_own_part_for_partition_topk(build):
    """Which was measured by one rank, that looks through everything."""
    cost = CompressionCost(numel=1000, compress_s=0.0, encode_s=8e-3, decompress_s=1e-3)
    profile = build.profile([1e-3], [1000], compression={"partition_topk": (cost,)})
    line = build.fit((0, 0.0, BETA))
    network = build.network(8, allreduce=line, allgather=line)
    prices = make_problem(profile, network).prices
    option = prices.option(PartitionTopK(density=0.01))
    assert option.codec_s[-1] == pytest.approx(8e-3 / 8 + 1e-3)


def test_measured_cost_of_dense_copies_is_counted(build):
    costs = build.compression(dense=(1e-3, 0.0))
    profile = build.profile([1e-3] * 2, [1000, 1000], compression=costs)
    problem = make_problem(profile, build.network())
    assert problem.sendable_s.tolist() == pytest.approx([2e-3, 4e-3])
