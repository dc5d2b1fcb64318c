"""Files as they should be, one of each kind: what fuzzing begins from."""

from __future__ import annotations

from comm_plan.plans import (
    Bucket,
    Contention,
    Curve,
    Dense,
    Document,
    EmulatedLink,
    Network,
    PhaseRates,
    Plan,
    Profile,
    Qsgd,
    Rates,
    Replan,
    RunRecord,
    Spread,
    TopK,
    Tuning,
    Vgc,
)
from comm_plan.tests.support import documents as build
from comm_plan.tests.support.printed import by_nccl_tests, by_nccl_tests_json, by_osu

LINK = EmulatedLink(bytes_per_s=12.5e6)

PROFILE = build.profile(
    [0.01, 0.02, 0.001, 0.03],
    [1_000, 250_000, 64, 4_000_000],
    forward_s=0.02,
    update_s=0.003,
    dtypes=["float32", "float32", "bfloat16", "float32"],
    compression=build.compression(topk=(1e-4, 1e-9), fp16=(1e-5, 1e-10)),
).model_copy(
    update={
        "environment": {"torch": "2", "host": "here"},
        "iterations": 30,
        "waiting_s": 0.001,
        "forward_spread": Spread(p05_s=0.019, p95_s=0.025),
        "backward_spread": Spread(p05_s=0.06, p95_s=0.07),
        "contention": Contention(
            world_size=4,
            transfer=Rates(compute=0.9, channel=0.8),
            compressing=PhaseRates(startup=Rates(compute=0.9, channel=0.1)),
        ),
    }
)

NETWORK = Network(
    backend="gloo",
    world_size=4,
    hosts=("a", "b"),
    emulated_link=LINK,
    environment={"imported_from": "log"},
    collectives={
        "allreduce": build.samples((4, 1e-4), (4096, 3e-4), (1 << 20, 0.1)).model_copy(
            update={"fit": build.fit((0, 1e-4, 1e-7), (4096, 2e-4, 9e-8)).fit}
        ),
        "allgather": build.samples((64, 2e-4), (1 << 20, 0.05)),
        "point_to_point": build.fit((0, 5e-5, 1e-8)),
    },
)

PLAN = build.plan(
    PROFILE,
    *(
        Bucket(tensors=(tensor.name,), compressor=spec, collective=collective)
        for tensor, (spec, collective) in zip(
            PROFILE.tensors,
            [
                (Dense(), "allreduce"),
                (TopK(density=0.01), "allgather"),
                (Qsgd.example(), "allgather"),
                (Vgc(), "allgather"),
            ],
            strict=True,
        )
    ),
    baselines={"wfbp": 0.2, "threshold": 0.15},
    timing=build.timing(
        (0.03, 0.03, 0.04), (0.05, 0.05, 0.09), (0.06, 0.09, 0.1), (0.09, 0.1, 0.2),
        forward_s=0.02,
    ),
    emulated_link=LINK,
)  # fmt: skip

RUN = build.run(
    PLAN,
    losses=(2.0, None, 1.5),
    accuracies=[(1, 0.5), (3, 0.75)],
    sent=[(4_000, 4_000), (1_000_000, 20_000), (128, 128), (16_000_000, 1_000)],
    timing=PLAN.predicted.timing,
    hosts=("a", "b"),
    replans=(
        Replan(
            step=2, reason="slower", plan_sha256="x",
            expected_s=0.1, corrected_s=0.2, predicted_s=0.15,
        ),
    ),
)  # fmt: skip

TUNING = build.tuning(
    PROFILE,
    build.trial(
        "ddp", 0.2, 0.25, [Curve(seed=0, seconds=(0.1, 0.2), losses=(2.0, 1.0))]
    ),
    build.trial(
        "topk", 0.1, 0.15, [Curve(seed=0, seconds=(0.1, 0.2), losses=(2.0, 0.5))],
        plan="plan.json", lossless=False,
    ),
    not_tried={"vgc": "no second moments"},
)  # fmt: skip

DOCUMENTS: dict[type[Document], Document] = {
    Profile: PROFILE,
    Network: NETWORK,
    Plan: PLAN,
    RunRecord: RUN,
    Tuning: TUNING,
}

IMPORTED = {
    "nccl-tests": by_nccl_tests(NETWORK, "allreduce"),
    "nccl-tests, JSON": by_nccl_tests_json(NETWORK, "allreduce"),
    "OSU": by_osu(NETWORK, "allreduce"),
    "OSU, all-gather": by_osu(NETWORK, "allgather"),
}
"""What other benchmarks print, by whom."""
