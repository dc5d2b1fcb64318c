"""TernGrad: what clipping does, bytes on the wire, and throughput (Fig. 5).

The performance model is :mod:`comm_plan.reproduction.terngrad_throughput`.
"""

from __future__ import annotations

import math
from typing import Any

from comm_plan import units
from comm_plan.plans.compression import TernGrad
from comm_plan.reproduction import clipping
from comm_plan.reproduction.published import results
from comm_plan.reproduction.terngrad_throughput import (
    cluster,
    network,
    speedup,
    spread_out,
    strong_images_per_s,
    weak_images_per_s,
)
from comm_plan.reproduction.values import (
    Cell,
    Chapter,
    Comparison,
    Section,
    side_by_side,
    table,
)

MOST_RANKS = 127
"""So many trits add up within int8."""

GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def chapter() -> Chapter:
    """Return all of the paper that can be computed."""
    sections = (wire(), clipped(), zeros(), claims())
    throughput = tuple(weak(name) for name in printed()["clusters"])
    rest = (*throughput, strong(), accuracy())
    return Chapter("TernGrad", printed()["source"], (*sections, *rest))


def printed() -> dict[str, Any]:
    """Return the paper's figures."""
    return results("terngrad")


def wire() -> Section:
    """Return bytes on the wire."""
    numel = 10**6
    spec = TernGrad()
    packed = 4 * numel / spec.message_nbytes([numel], "allgather")
    summed = 4 * numel / spec.message_nbytes([numel], "allreduce")
    published = printed()["worker_to_server_ratio"]
    comparisons = [
        Comparison("worker to server, five trits a byte", published, packed, "x"),
        Comparison(
            f"the sum of {MOST_RANKS} ranks, int8",
            32 / math.log2(1 + 2 * MOST_RANKS),
            summed,
            "x",
        ),
    ]
    return Section(
        "Section 3.1: fewer bytes",
        "32 / log2(3) is the limit; 3^5 = 243 trits fit in 256. The sum of P ranks' "
        "trits has 2P + 1 levels, and the paper's server sends it back as "
        "32 / log2(1 + 2P) times less; all-reduce sends it as int8 for any P up to "
        f"{MOST_RANKS}, at which both are equal (among 8 the paper's would be "
        f"{32 / math.log2(17):.3g}x).",
        side_by_side(comparisons),
    )


def clipped() -> Section:
    """Return how clipping changes length and direction."""
    said = printed()["clipping"]
    normal, laplace = clipping.normal(said["c"]), clipping.laplace(said["c"])
    low, high = (units.percent(share) for share in said["length_change"])
    degrees = "{} to {} degrees".format(*said["angle_degrees"])
    rows = [
        (
            "shorter by",
            f"{low} to {high}",
            units.percent(1 - normal.length),
            units.percent(1 - laplace.length),
        ),
        (
            "direction",
            degrees,
            f"{normal.angle_degrees:.2f} degrees",
            f"{laplace.angle_degrees:.2f} degrees",
        ),
    ]
    return Section(
        "Section 3.3: clipping at 2.5 deviations",
        "In closed form. For normal gradients, which the paper supposes, both figures "
        "are as printed; with heavier tails clipping changes more.",
        table(("", "published", "normal", "Laplace"), rows),
    )


def zeros() -> Section:
    """Return Fig. 4(c) by the distributions."""
    c, published = printed()["clipping"]["c"], printed()["fc6_zeros"]
    comparisons = [
        Comparison("normal gradients", published, clipping.normal(c).zeros, "%"),
        Comparison("Laplace gradients", published, clipping.laplace(c).zeros, "%"),
    ]
    return Section(
        "Fig. 4(c): gradients that become 0 (fc6)",
        "An element is kept with probability |g| / s, and s is the bound where "
        "anything is clipped. The printed mean lies between the two distributions.",
        side_by_side(comparisons),
    )


def claims() -> Section:
    """Return the two speed-ups that the text prints."""
    ethernet, infiniband = map(cluster, printed()["clusters"])
    alexnet, vgg = network("AlexNet"), network("VggNet-A")
    published = printed()["alexnet_speedup_8_gpus"]
    slow_s = ethernet.communicate_s(alexnet.dense_nbytes, *spread_out(8))
    fast_s = ethernet.communicate_s(alexnet.ternary_nbytes, *spread_out(8))
    needed_s = (slow_s - published * fast_s) / (published - 1)
    ours_s = alexnet.compute_s(ethernet, alexnet.batch_size)
    comparisons = [
        Comparison(
            "AlexNet, 8 GPUs, 1 Gbit/s", published, speedup(alexnet, ethernet, 8), "x"
        ),
        Comparison("its computation: implied, and estimated", needed_s, ours_s, "s"),
        Comparison(
            "VggNet-A, 512 GPUs, InfiniBand",
            printed()["vgg_a_speedup_512_gpus"],
            speedup(vgg, infiniband, 512),
            "x",
        ),
    ]
    return Section(
        "Fig. 5: the gains that the text prints",
        "By Eq. 29. AlexNet's 244 MB take two seconds at 1 Gbit/s, so 3.04x would need "
        "the computation of the second row: 128 images in that time is a fraction of "
        "what a GTX 1080 does. The doubling on 128 InfiniBand nodes comes out.",
        side_by_side(comparisons),
    )


def weak(name: str) -> Section:
    """Return Fig. 5 for one cluster."""
    at = cluster(name)
    rows = []
    for gpus in GPUS:
        cells = []
        for model in printed()["networks"]:
            of = network(model)
            dense = weak_images_per_s(of, at, gpus, of.dense_nbytes)
            cells += [f"{dense:.3g}", units.times(speedup(of, at, gpus))]
        rows.append((f"{gpus} GPUs", *cells))
    head = [""]
    for model in printed()["networks"]:
        head += [f"{model}, images/s", "TernGrad"]
    return Section(
        f"Fig. 5, weak scaling: {name}",
        "Images a second with float gradients, and how many times as many with ternary "
        "ones. As printed: networks that send much for what they compute gain most, "
        "slower links gain more. Computation is estimated: half of the GPU's peak.",
        table(head, rows),
    )


def strong() -> Section:
    """Return strong scaling, Eq. 27 and 28."""
    rows = []
    at = cluster(next(iter(printed()["clusters"])))
    for gpus in GPUS[:7]:
        cells = []
        for model in printed()["networks"]:
            of = network(model)
            for nbytes in (of.dense_nbytes, of.ternary_nbytes):
                cells.append(f"{strong_images_per_s(of, at, gpus, nbytes):.3g}")
        rows.append((f"{gpus} GPUs", *cells))
    head = [""]
    for model in printed()["networks"]:
        head += [f"{model}, float", "ternary"]
    return Section(
        "Eq. 27, strong scaling: 1 Gbit/s Ethernet",
        "Images a second when the batch of one GPU is shared by all: more machines "
        "make it slower, with ternary gradients too.",
        table(head, rows),
    )


def accuracy() -> Section:
    """Return Tables 1 to 3 and where ours are."""
    rows: list[tuple[Cell, ...]] = [
        (name, dense and units.percent(dense), units.percent(ternary))
        for name, dense, ternary in printed()["accuracy"]
    ]
    return Section(
        "Tables 1 to 3: accuracy (published only)",
        "Both columns have the same epochs, but not the same regularisation: ternary "
        "AlexNet and GoogLeNet drop fewer neurons (0.2 for 0.5, and 0.08 for 0.2), and "
        "GoogLeNet's weights decay less. [Accuracy](accuracy.md) has TernGrad beside "
        "dense on three small workloads, with everything else equal.",
        table(("", "float", "ternary"), rows),
    )
