"""What if there were more ranks: solvers' predictions over numbers of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from comm_plan.planner.documents import make_problem
from comm_plan.planner.problem import Settings
from comm_plan.planner.summary import Summary, summarise
from comm_plan.plans.compression import method
from comm_plan.plans.network import Network
from comm_plan.plans.profile import CompressionCost, Profile


@dataclass(frozen=True)
class WhatIf:
    """Predictions over numbers of ranks.

    Attributes:
        summaries: one for each number of ranks.
        remarks: what a reader must know: what could not be run, what was left out.
    """

    summaries: tuple[Summary, ...]
    remarks: tuple[str, ...]


def what_if(
    profile: Profile,
    network: Network,
    world_sizes: Iterable[int],
    solvers: Sequence[str],
    settings: Settings,
) -> WhatIf:
    """Return what ``solvers`` predict for each of ``world_sizes``.

    A forced compressor that the profile has no costs for counts as free to compute, and
    a remark says so.

    Raises:
        InputError: an unknown solver or compressor, or a cost that is needed was not
            measured.
    """
    remarks: dict[str, None] = {}
    if settings.compressor is not None:
        spec, _ = method(settings.compressor, **settings.options)
        if spec.kind not in profile.compression:
            profile = _with_free(profile, spec.kind)
            remarks[
                f"the profile has no costs for {spec.kind}: only its messages count"
            ] = None
    summaries = []
    for size in world_sizes:
        here = replace(settings, world_size=size)
        summary = summarise(make_problem(profile, network, here), solvers, beside=())
        summaries.append(summary)
        for name, reason in summary.left_out.items():
            remarks[f"{name} is left out: {reason}"] = None
    return WhatIf(tuple(summaries), tuple(remarks))


def _with_free(profile: Profile, kind: str) -> Profile:
    """Return the profile with a compressor that takes no time."""
    free = CompressionCost(numel=1, compress_s=0.0, decompress_s=0.0)
    compression = {**profile.compression, kind: (free,)}
    return profile.model_copy(update={"compression": compression})
