"""What solvers predict: their iteration times side by side, over ranks, and as spans.

The rows and schedules are the planner's values; what is drawn of them is named here, so
that this room needs nothing of that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.table import Table

from comm_plan import units
from comm_plan.arrays import FloatArray
from comm_plan.report.timeline import Lane, Span, Timeline


class ComparedPlan(Protocol):
    """What is shown of one solver's plan."""

    @property
    def solver(self) -> str:
        """The solver's name."""

    @property
    def of_bound(self) -> float:
        """The iteration time as a multiple of the dense lower bound."""

    @property
    def label(self) -> str:
        """The solver's name, and what was forced upon it."""

    @property
    def iteration_s(self) -> float:
        """Predicted iteration time."""

    @property
    def exposed_s(self) -> float:
        """Communication that computation does not hide."""

    @property
    def buckets(self) -> int:
        """How many messages an iteration sends."""

    @property
    def largest_ratio(self) -> float:
        """The most compressed bucket's ratio; 1: dense."""


class Comparison(Protocol):
    """What is shown of solvers side by side."""

    @property
    def lower_bound_s(self) -> float:
        """A time that no dense plan beats."""

    @property
    def rows(self) -> Sequence[ComparedPlan]:
        """The solvers."""

    @property
    def world_size(self) -> int:
        """Number of ranks planned for."""

    @property
    def extrapolated_from(self) -> int | None:
        """The measured number of ranks where it is another one."""

    @property
    def alone_s(self) -> float:
        """An iteration of one rank, without communication, compression and waiting."""


class DrawnTimes(Protocol):
    """What is drawn of the buckets' costs."""

    @property
    def compress_s(self) -> FloatArray:
        """[B] seconds on the compute stream."""

    @property
    def communicate_s(self) -> FloatArray:
        """[B] seconds of collective calls."""


class DrawnSchedule(Protocol):
    """What is drawn of an iteration."""

    @property
    def times(self) -> DrawnTimes:
        """What each bucket costs."""

    @property
    def ready_s(self) -> FloatArray:
        """[B] when each bucket is ready and compressed."""

    @property
    def start_s(self) -> FloatArray:
        """[B] when each bucket starts on the channel."""

    @property
    def finish_s(self) -> FloatArray:
        """[B] when each bucket leaves the channel."""

    @property
    def slowdown(self) -> FloatArray:
        """[B] how many times as long as alone each keeps the channel."""

    @property
    def compute_end_s(self) -> float:
        """When backward and compression end."""

    @property
    def iteration_s(self) -> float:
        """When the optimizer ends."""

    @property
    def exposed_s(self) -> float:
        """What free communication would save."""


def solver_table(summary: Comparison, chosen: ComparedPlan) -> Table:
    """Return every solver's prediction; the row ``chosen`` stands out."""
    title = f"predicted with {units.counted(summary.world_size, 'rank')}"
    if summary.extrapolated_from is not None:
        title += f", extrapolated from {summary.extrapolated_from}"
    table = Table(
        title=title,
        caption=bound_text(summary.lower_bound_s),
    )
    for name in ("solver", "iteration", "exposed", "buckets", "x bound", "compression"):
        table.add_column(name, justify="left" if name == "solver" else "right")
    for row in summary.rows:
        table.add_row(
            row.label,
            units.seconds(row.iteration_s),
            units.seconds(row.exposed_s),
            str(row.buckets),
            f"{row.of_bound:.2f}",
            compression_of(row),
            style="bold" if row is chosen else None,
        )
    return table


def bound_text(lower_bound_s: float) -> str:
    """Return what the lower bound is one of."""
    return (
        f"lower bound {units.seconds(lower_bound_s)}: no plan that averages every "
        "gradient as it is takes less on this link"
    )


def compression_of(row: ComparedPlan) -> str:
    """Return how much the plan of ``row`` leaves out, in words."""
    return "dense" if row.largest_ratio == 1 else f"up to {row.largest_ratio:.4g}x"


def what_if_table(
    summaries: Sequence[Comparison], solvers: Sequence[str], measured: int
) -> Table:
    """Return solvers' iteration times over numbers of ranks.

    Args:
        summaries: one for each number of ranks.
        solvers: which of their rows.
        measured: the number of ranks that the network was measured with.
    """
    table = Table(
        title="predicted iteration time",
        caption=f"measured with {units.counted(measured, 'rank')}; others (*) are "
        "extrapolated through the closed forms of the collectives",
    )
    table.add_column("ranks", justify="right", overflow="fold")
    for name in (*solvers, "bound"):
        table.add_column(name, justify="right", overflow="fold")
    for summary in summaries:
        times = {row.solver: units.seconds(row.iteration_s) for row in summary.rows}
        mark = "" if summary.world_size == measured else " *"
        table.add_row(
            f"{summary.world_size}{mark}",
            *(times.get(name, "-") for name in solvers),
            units.seconds(summary.lower_bound_s),
        )
    return table


def speedup_table(summaries: Sequence[Comparison], solvers: Sequence[str]) -> Table:
    """Return solvers' S(N) = N / (1 + r) over numbers of ranks N, and r.

    r is what an iteration takes beyond one rank's computation, as a share of it (Eq. 4
    and 5 of the MG-WFBP paper).

    Args:
        summaries: one for each number of ranks.
        solvers: which of their rows.
    """
    table = Table(
        title="speed-up over one rank",
        caption="in brackets r: what an iteration takes beyond one rank's computation, "
        "as a share of it; S = N / (1 + r)",
    )
    for name in ("ranks", *solvers):
        table.add_column(name, justify="right", overflow="fold")
    for summary in summaries:
        size, alone_s = summary.world_size, summary.alone_s
        cells = {
            row.solver: f"{size * alone_s / row.iteration_s:.2f} "
            f"({row.iteration_s / alone_s - 1:.2f})"
            for row in summary.rows
            if alone_s > 0
        }
        table.add_row(str(size), *(cells.get(name, "-") for name in solvers))
    return table


def timeline(
    name: str, schedule: DrawnSchedule, *, forward_s: float, update_s: float
) -> Timeline:
    """Return a simulated iteration as spans.

    Args:
        name: the picture's title.
        schedule: the iteration.
        forward_s: how long its forward pass takes.
        update_s: how long the optimizer takes at its end.
    """
    times = schedule.times
    spans = [Span("forward", "forward", 0.0, forward_s)]
    now = forward_s

    def add(
        lane: Lane, start_s: float, end_s: float, bucket: int | None = None
    ) -> None:
        if end_s > start_s:
            label = lane if bucket is None else f"{lane} of bucket {bucket}"
            spans.append(Span(label, lane, start_s, end_s, bucket))

    for number, ready in enumerate(schedule.ready_s.tolist()):
        compress_s = float(times.compress_s[number])
        add("backward", now, ready - compress_s, number)
        add("compression", ready - compress_s, ready, number)
        start, finish = schedule.start_s[number], schedule.finish_s[number]
        communicate_s = times.communicate_s[number] * schedule.slowdown[number]
        sent = float(start + communicate_s)
        add("communication", float(start), sent, number)
        add("decompression", sent, float(finish), number)
        now = ready
    add("backward", now, schedule.compute_end_s)
    iteration_s = schedule.iteration_s
    add("update", iteration_s - update_s, iteration_s)
    return Timeline(name, tuple(spans), iteration_s, schedule.exposed_s)
