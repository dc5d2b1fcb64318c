"""What people see: tables, progress bars and pictures, on stderr.

The rooms return values; here they are put on the screen. Like the command line it may
import every room, and does so inside functions, so that ``--help`` is instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from comm_plan import units
from comm_plan.transports.ranks import place

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from comm_plan.planner.problem import Problem, Solution
    from comm_plan.planner.summary import Summary
    from comm_plan.plans import Document, Plan, Profile
    from comm_plan.report.timeline import Lane, Timeline
    from comm_plan.runtime.engine import Engine
    from comm_plan.runtime.trainer import Event, Watcher


def console() -> Console:
    """Return the terminal: stderr, as wide as it is."""
    from rich.console import Console

    return Console(stderr=True)


def show(renderable: Any) -> None:
    """Print a table or a picture."""
    console().print(renderable)


def say(line: str) -> None:
    """Print one line."""
    console().print(line, highlight=False)


def tables(document: Document, *, every_collective: bool) -> Iterator[Table]:
    """Yield what ``document`` holds as tables.

    Args:
        document: any.
        every_collective: show each collective of a network size by size, not only
            all-reduce.
    """
    from comm_plan.commbench.table import overview, table
    from comm_plan.plans import Network
    from comm_plan.report.tables import tables

    if isinstance(document, Network):
        for collective in document.collectives:
            if every_collective or collective == "allreduce":
                yield table(document, collective)
        yield overview(document)
    else:
        yield from tables(document)


def solver_table(summary: Summary, plan: Plan, forced: str | None) -> Table:
    """Return every solver's prediction; the row of ``plan`` stands out.

    Args:
        summary: of all solvers.
        plan: the one that is written.
        forced: the compressor that was forced upon it, which ``summary`` knows not of.
    """
    from rich.table import Table

    title = f"predicted with {summary.world_size} ranks"
    if summary.extrapolated_from is not None:
        title += f", extrapolated from {summary.extrapolated_from}"
    table = Table(
        title=title,
        caption=f"lower bound {units.seconds(summary.lower_bound_s)}: no dense plan is "
        "faster on this link",
    )
    for name in ("solver", "iteration", "exposed", "buckets", "x bound", "compression"):
        table.add_column(name, justify="left" if name == "solver" else "right")
    for row in summary.rows:
        table.add_row(
            row.solver,
            units.seconds(row.iteration_s),
            units.seconds(row.exposed_s),
            str(row.buckets),
            f"{row.of_bound:.2f}",
            "dense" if row.largest_ratio == 1 else f"up to {row.largest_ratio:.4g}x",
            style="bold" if forced is None and row.solver == plan.solver else None,
        )
    if forced is not None and plan.predicted is not None:
        table.add_row(
            f"{plan.solver}, {forced}",
            units.seconds(plan.predicted.iteration_s),
            units.seconds(plan.predicted.exposed_s),
            str(len(plan.buckets)),
            f"{plan.predicted.iteration_s / summary.lower_bound_s:.2f}",
            "as forced",
            style="bold",
        )
    return table


def what_if_table(summaries: Sequence[Summary], measured: int) -> Table:
    """Return every solver's iteration time over numbers of ranks.

    Args:
        summaries: one for each number of ranks.
        measured: the number of ranks that the network was measured with.
    """
    from rich.table import Table

    table = Table(
        title="predicted iteration time",
        caption=f"measured with {measured} ranks; others (*) are extrapolated through "
        "the closed forms of the collectives",
    )
    table.add_column("ranks", justify="right")
    solvers = sorted(row.solver for row in summaries[0].rows)
    for name in (*solvers, "bound"):
        table.add_column(name, justify="right")
    for summary in summaries:
        times = {row.solver: units.seconds(row.iteration_s) for row in summary.rows}
        mark = "" if summary.world_size == measured else " *"
        table.add_row(
            f"{summary.world_size}{mark}",
            *(times.get(name, "-") for name in solvers),
            units.seconds(summary.lower_bound_s),
        )
    return table


def picture(
    name: str, profile: Profile, problem: Problem, solution: Solution
) -> Timeline:
    """Turn a simulated iteration into what the report room draws."""
    from comm_plan.report.timeline import Span, Timeline

    simulated = problem.simulate(solution)
    times = simulated.times
    spans = [Span("forward", "forward", 0.0, profile.forward_s)]
    now = profile.forward_s

    def add(
        lane: Lane, start_s: float, end_s: float, bucket: int | None = None
    ) -> None:
        if end_s > start_s:
            label = lane if bucket is None else f"{lane} of bucket {bucket}"
            spans.append(Span(label, lane, start_s, end_s, bucket))

    for number, ready in enumerate(simulated.ready_s.tolist()):
        compress_s = float(times.compress_s[number])
        add("backward", now, ready - compress_s, number)
        add("compression", ready - compress_s, ready, number)
        start, finish = simulated.start_s[number], simulated.finish_s[number]
        sent = float(start + times.communicate_s[number])
        add("communication", float(start), sent, number)
        add("decompression", sent, float(finish), number)
        now = ready
    add("backward", now, simulated.compute_end_s)
    iteration_s = simulated.iteration_s
    add("update", iteration_s - problem.compute.update_s, iteration_s)
    return Timeline(name, tuple(spans), iteration_s, simulated.exposed_s)


@contextmanager
def progress() -> Iterator[Callable[[int, int | None, str], None]]:
    """Lend a progress bar, shown on rank 0: ``progress(done, total, description)``."""
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn())
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=console(),
        transient=True,
        disable=place().rank > 0,
    ) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int | None, description: str) -> None:
            bar.update(task, completed=done, total=total, description=description)

        yield show


@contextmanager
def training_progress(total: int | None) -> Iterator[Watcher]:
    """Lend a watcher that shows steps, loss, time, wire bytes and density."""
    with progress() as advance:

        def watch(event: Event, engine: Engine) -> None:
            parts = [
                f"epoch {event.epoch}",
                f"loss {event.loss:.4f}",
                units.seconds(event.iteration_s),
            ]
            if event.message_nbytes < event.dense_nbytes:
                ratio = event.dense_nbytes / max(1, event.message_nbytes)
                sent = units.nbytes(event.message_nbytes)
                parts.append(f"{sent} ({units.times(ratio)} less)")
            if event.density_floor:
                parts.append(f"warm-up density {event.density_floor:g}")
            if event.skipped:
                say(f"step {event.step}: inf or NaN in a gradient, skipped everywhere")
            advance(event.step, total, ", ".join(parts))

        yield watch
