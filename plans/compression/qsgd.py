"""QSGD's spec; the method is :mod:`comm_plan.compressors.qsgd`."""

from __future__ import annotations

from typing import Literal

from comm_plan.plans.compression.grouped import Grouped


class Qsgd(Grouped):
    """Stochastic levels, with a step for each group.

    Groups are by default as published (VGC paper, section 6).
    """

    kind: Literal["qsgd"] = "qsgd"
    bits: Literal[2, 3, 4] = 4

    default_groups = {2: 128, 3: 512, 4: 512}
    methods = {"qsgd": "allgather"}
    implementation = "qsgd:QsgdCompressor"
    by_default = ("qsgd",)
