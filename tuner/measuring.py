"""The costs that a tuning starts from, measured within a share of its budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from comm_plan.commbench import sweep
from comm_plan.commbench.probe import affordable
from comm_plan.errors import InputError
from comm_plan.plans import Network, Profile
from comm_plan.profiler import measure
from comm_plan.profiler.measure import ITERATIONS, MIN_ITERATIONS
from comm_plan.transports.base import Transport
from comm_plan.workloads.base import Workload

Progress = Callable[[int, int | None, str], None]

PROFILE_SHARE = 0.4
"""Profiling may take this share of the budget, as far as that is known beforehand."""

PROFILE_LIMIT = 0.7
"""It is given up where it takes this share."""

NETWORK_SHARE = 0.2
"""The sweep over the network is asked for this share of the budget."""

NETWORK_LIMIT = 0.3
"""It is not begun where sizes that tell the bandwidth take more than this share."""


def profiled(
    workload: Workload,
    transport: Transport,
    kinds: Sequence[str],
    budget_s: float,
    progress: Progress,
    *,
    find_unused_parameters: bool = False,
) -> Profile:
    """Return the profile of ``workload``, equal on all ranks.

    Of compressors those of ``kinds``.

    Raises:
        InputError: the budget does not suffice for it.
        RunError: as by :func:`~comm_plan.profiler.measure`.
    """
    started_s = time.perf_counter()

    def watch(done: int, total: int, what: str) -> None:
        progress(done, total, what)
        so_far_s = time.perf_counter() - started_s
        needed_s = so_far_s / done * total
        too_long = needed_s > PROFILE_SHARE * budget_s
        if what == ITERATIONS and done == 3 and too_long:
            raise InputError(
                f"--budget {budget_s:g}: {total} iterations to profile take about "
                f"{needed_s:.0f} s: give {math.ceil(needed_s / PROFILE_SHARE)} or "
                "more, or --profile FILE"
            )
        if so_far_s > PROFILE_LIMIT * budget_s:
            raise InputError(
                f"--budget {budget_s:g}: profiling alone has taken {so_far_s:.0f} s "
                f"and is at {what}: give {math.ceil(so_far_s / PROFILE_SHARE)} or "
                "more, or --profile FILE"
            )

    return measure(
        workload,
        transport,
        kinds=kinds,
        iterations=MIN_ITERATIONS,
        find_unused_parameters=find_unused_parameters,
        progress=watch,
    )


def swept(
    transport: Transport, largest_nbytes: int, budget_s: float, progress: Progress
) -> Network:
    """Return what collectives cost, equal on all ranks.

    Messages are measured up to the model's size, on slow networks as far as the time
    allows: what longer ones take follows from the fit.

    Raises:
        InputError: the budget does not suffice for it.
    """
    largest = min(sweep.LARGEST_NBYTES, max(2**16, largest_nbytes))
    sizes = sweep.geometric_sizes(largest=largest, factor=4)
    fitting = affordable(transport, sizes, NETWORK_SHARE * budget_s)
    if fitting.sweep_s > NETWORK_LIMIT * budget_s:
        raise InputError(
            f"--budget {budget_s:g}: to benchmark the network takes about "
            f"{fitting.sweep_s:.0f} s: give "
            f"{math.ceil(fitting.sweep_s / NETWORK_SHARE)} or more, or --network FILE"
        )
    return sweep.measure(
        transport, sizes=fitting.sizes, budget_s=fitting.left_s, progress=progress
    )
