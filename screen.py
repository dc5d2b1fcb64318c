"""The terminal: tables, remarks, errors and progress bars, on stderr.

Only what somebody asks for, and may want to page or to search, goes to stdout.

All text is printed as it is: names in documents and paths are no markup, and control
characters in them do nothing.

Imports wait inside the functions, so that ``--help`` is instant.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from comm_plan import units
from comm_plan.errors import CommPlanError, one_line, printable
from comm_plan.transports.ranks import place, place_in_errors

if TYPE_CHECKING:
    from rich.console import Console

    from comm_plan.runtime.engine import Engine
    from comm_plan.runtime.trainer import Event, Watcher


PIPED_WIDTH = 200
"""Columns of tables that go to a file or to another program."""


def console(*, stderr: bool = True, width: int | None = None) -> Console:
    """Return the terminal: stderr, or else stdout; as wide as it is, or as is said."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, width=width)


def show(renderable: Any) -> None:
    """Print a table or a picture."""
    console().print(renderable)


def answer(renderable: Any) -> None:
    """Print the table or picture that was asked for, to stdout.

    Where that is no terminal, it is wide enough for names.
    """
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    console(stderr=False, width=width).print(renderable)


def say(line: str) -> None:
    """Print one line; only a terminal wraps it, a path in a log stays in one piece."""
    terminal = console()
    whole = not terminal.is_terminal
    terminal.print(printable(line), highlight=False, soft_wrap=whole)


def explain(error: BaseException) -> None:
    """Print ``error`` in one line."""
    here = place_in_errors()
    if os.environ.get("COMM_PLAN_DEBUG"):
        traceback.print_exception(error)
    text = one_line(str(error))
    if not isinstance(error, CommPlanError):
        text = f"{type(error).__name__}: {text} (comm-plan --debug VERB: where)"
    who = f"rank {here.rank}: " if here.world_size > 1 else ""
    # In one piece, for other ranks may print too.
    sys.stderr.write(f"comm-plan: error: {who}{text}\n")
    sys.stderr.flush()


@contextmanager
def progress() -> Iterator[Callable[[int, int | None, str], None]]:
    """Lend a progress bar, shown on rank 0: ``progress(done, total, description)``."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    terminal = console()
    with Progress(
        TextColumn("{task.description}", style="progress.description", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=terminal,
        transient=True,
        disable=place().rank > 0 or not terminal.is_terminal,
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
            if 0 < event.message_nbytes < event.dense_nbytes:
                ratio = event.dense_nbytes / event.message_nbytes
                sent = units.nbytes(event.message_nbytes)
                parts.append(f"{sent} ({units.times(ratio)} less)")
            if event.density_floor:
                parts.append(f"warm-up density {event.density_floor:g}")
            advance(event.step, total, ", ".join(parts))

        yield watch
