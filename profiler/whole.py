"""The whole profile of a workload: its times, and what compressors cost beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from comm_plan.plans import Profile
from comm_plan.plans.compression import spec_class
from comm_plan.profiler.compression import compression_costs
from comm_plan.profiler.in_place import in_place
from comm_plan.profiler.measure import measure
from comm_plan.profiler.second_moments import with_second_moments
from comm_plan.profiler.timings import Measurable, PassProgress
from comm_plan.transports.base import Transport

Progress = Callable[[int, int, str], None]

ITERATIONS = "iterations"
"""What is going on while iterations are timed."""


def measure_all(
    workload: Measurable,
    transport: Transport,
    *,
    kinds: Sequence[str],
    iterations: int | None = None,
    progress: Progress = lambda done, total, what: None,
) -> Profile:
    """Return what :func:`measure` says, with the costs of compressors.

    Args:
        workload: what to measure; its model is moved to the transport's device.
        transport: the ranks; every rank calls this, and all get one profile.
        kinds: which compressors to measure.
        iterations: as for :func:`measure`.
        progress: called with what is done, of how much, and what is going on.

    Raises:
        InputError: as :func:`measure` and :func:`compression_costs`.
        MismatchError: the ranks have different models.
    """
    device = str(transport.device)
    profile = measure(
        workload,
        device=device,
        iterations=iterations,
        transport=transport,
        progress=lambda done, total: progress(done, total, ITERATIONS),
    )
    profile = with_costs(
        profile,
        kinds,
        transport,
        device,
        lambda done, total: progress(done, total, "compressors"),
    )
    costs = in_place(
        workload,
        profile,
        transport,
        lambda done, total: progress(done, total, "compressors in place"),
    )
    profile = profile.model_copy(update={"compression": costs})
    if any(spec_class(kind).needs_second_moments for kind in kinds):
        profile = with_second_moments(workload, profile, transport)
    return profile


def with_costs(
    profile: Profile,
    kinds: Sequence[str],
    transport: Transport,
    device: str,
    progress: PassProgress | None = None,
) -> Profile:
    """Return ``profile`` with what compressors cost; a collective call.

    Args:
        profile: of the model.
        kinds: which compressors to measure.
        transport: the ranks.
        device: where to measure them.
        progress: called with the number of points done and of all.

    Raises:
        InputError: as :func:`compression_costs`.
    """
    costs = compression_costs(
        profile.model.parameters,
        kinds=kinds,
        device=device,
        transport=transport,
        progress=progress,
    )
    return profile.model_copy(update={"compression": costs})
