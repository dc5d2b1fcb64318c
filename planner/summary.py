"""All solvers side by side, and in plain words what there is to gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from comm_plan.errors import InputError
from comm_plan.planner import CHOOSE_COMPRESSION, SOLVERS
from comm_plan.planner.documents import dense_lower_bound_s, make_problem
from comm_plan.planner.problem import Settings
from comm_plan.plans.network import Network
from comm_plan.plans.profile import Profile

WORTHWHILE = 0.01
"""A gain of a smaller share of the iteration time is called none."""

TODAY = "threshold"
"""What people run without planning: the bucket sizes of PyTorch DDP."""


@dataclass(frozen=True)
class Row:
    """What the schedule model says of one solver's plan.

    Attributes:
        solver: its name.
        iteration_s: predicted iteration time.
        exposed_s: communication that computation does not hide.
        buckets: how many.
        of_bound: iteration_s as a multiple of the lower bound for dense traffic; a
            compressed plan may be below 1.
        largest_ratio: the most compressed bucket's ratio; 1: dense.
    """

    solver: str
    iteration_s: float
    exposed_s: float
    buckets: int
    of_bound: float
    largest_ratio: float


@dataclass(frozen=True)
class Summary:
    """All solvers' rows, fastest first, and the verdict.

    ``left_out`` maps a solver to why it could not be run.
    """

    rows: tuple[Row, ...]
    lower_bound_s: float
    world_size: int
    extrapolated_from: int | None
    left_out: dict[str, str]
    verdict: str


def summarise(
    profile: Profile,
    network: Network,
    *,
    world_size: int | None = None,
    link_bytes_per_s: float | None = None,
    dense_layers: Sequence[str] | None = None,
    settings: Settings | None = None,
) -> Summary:
    """Return what every solver makes of a model on a network.

    Args:
        profile: the model.
        network: the network.
        world_size: as in :func:`comm_plan.planner.solve`.
        link_bytes_per_s: as there.
        dense_layers: as there.
        settings: as there.

    Raises:
        InputError: not even a dense plan can be made.
    """
    problem = make_problem(profile, network, world_size, dense_layers, settings)
    bound = dense_lower_bound_s(problem, link_bytes_per_s)
    rows, left_out = [], {}
    for name, solver in SOLVERS.items():
        try:
            solution = solver(problem)
        except InputError as error:
            left_out[name] = str(error)
            continue
        timeline = problem.simulate(solution)
        rows.append(
            Row(
                solver=name,
                iteration_s=timeline.iteration_s,
                exposed_s=timeline.exposed_s,
                buckets=len(solution.stops),
                of_bound=timeline.iteration_s / bound,
                largest_ratio=max(option.ratio for option in solution.options),
            )
        )
    return Summary(
        rows=tuple(sorted(rows, key=lambda row: row.iteration_s)),
        lower_bound_s=bound,
        world_size=problem.world_size,
        extrapolated_from=(
            None if problem.world_size == network.world_size else network.world_size
        ),
        left_out=left_out,
        verdict=verdict(rows, bound),
    )


def verdict(rows: Sequence[Row], lower_bound_s: float) -> str:
    """Return in one sentence what planning brings over DDP's buckets.

    Args:
        rows: at least those of ``threshold`` and ``optimal``.
        lower_bound_s: for dense traffic.
    """
    by_name = {row.solver: row for row in rows}
    today, merged = by_name[TODAY], by_name["optimal"]
    planned = min(
        (row for row in rows if row.solver in CHOOSE_COMPRESSION | {"optimal"}),
        key=lambda row: row.iteration_s,
    )
    if today.exposed_s <= WORTHWHILE * today.iteration_s:
        return (
            "nothing to gain: DDP's buckets leave only "
            f"{_percent(today.exposed_s / today.iteration_s)} of the iteration exposed"
        )
    gain = 1 - merged.iteration_s / today.iteration_s
    most = 1 - planned.iteration_s / today.iteration_s
    if most <= WORTHWHILE:
        return (
            f"nothing to gain: the best plan is {_percent(most)} faster than DDP's "
            f"buckets, and no dense plan beats {lower_bound_s * 1e3:.4g} ms"
        )
    if gain > most - WORTHWHILE:
        return (
            f"merge only: {_percent(gain)} less time than DDP's buckets, exactly dense"
        )
    if gain <= WORTHWHILE:
        return (
            f"compress: {planned.solver} takes {_percent(most)} less time than DDP's "
            "buckets; merging alone gains nothing"
        )
    return (
        f"compress: {planned.solver} takes {_percent(most)} less time than DDP's "
        f"buckets; merging alone, exactly dense, {_percent(gain)}"
    )


def _percent(share: float) -> str:
    return f"{max(share, 0.0) * 100:.1f} %"
