"""Reports of documents: read them, plan what can be planned, draw what there is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from comm_plan import units
from comm_plan.errors import DocumentError, InputError, printable
from comm_plan.planner import (
    Settings,
    Summary,
    find_solver,
    make_problem,
    summarise,
)
from comm_plan.planner.what_if import what_if
from comm_plan.plans import check_writable, load_document, write_atomically
from comm_plan.plans.document import read_schema
from comm_plan.report.page import to_page
from comm_plan.report.page.arrange import arrange
from comm_plan.report.page.given import File, Forecast, Given
from comm_plan.report.page.timelines import drawn
from comm_plan.report.save import save
from comm_plan.report.solvers import timeline
from comm_plan.report.timeline import Timeline

BROKEN = re.compile(rb'[^\[]*?\{[^{}]*"schema"\s*:\s*"comm-plan/')
"""How a document of comm-plan begins, even one that is no JSON."""

HEAD_NBYTES = 4096
"""So near to its beginning a document states its schema."""

NEXT = "next-"
"""How files begin that a folder holds for the next tuning, not for this report."""

RANKS = (2, 4, 8, 16, 32, 64)
"""Over which the solvers' iteration times are predicted."""


def read(paths: Sequence[Path]) -> list[File]:
    """Read the documents in files and folders.

    Of a folder those of its JSON files count whose schema is one of comm-plan's, except
    the costs that ``tune`` corrected for the next time (``next-...``). Names that are
    no text are escaped.

    Raises:
        DocumentError: a file cannot be read, or is no valid document; in a folder one
            of comm-plan's.
        InputError: a folder holds no document.
    """
    return [
        (printable(str(file)), load_document(file))
        for path in paths
        for file in _files(path)
    ]


def _files(path: Path) -> list[Path]:
    """Return the files that ``path`` stands for."""
    if not path.is_dir():
        return [path]
    files = (f for f in sorted(path.glob("*.json")) if not f.name.startswith(NEXT))
    inside = [file for file in files if _is_ours(file)]
    if not inside:
        raise InputError(
            f"{path}: the folder holds no documents: give one that profile, solve, "
            "train or tune wrote to"
        )
    return inside


def _is_ours(file: Path) -> bool:
    """Return whether a file in a folder is one of comm-plan's, be it a broken one."""
    if not file.is_file():
        return False
    try:
        schema = read_schema(file)
    except DocumentError:
        return _begins_as_ours(file)
    return isinstance(schema, str) and schema.startswith("comm-plan/")


def _begins_as_ours(file: Path) -> bool:
    """Return whether a file that is no JSON object begins like one of comm-plan's.

    One that cannot be read may do so.
    """
    try:
        with file.open("rb") as stream:
            return BROKEN.match(stream.read(HEAD_NBYTES)) is not None
    except OSError:
        return True


def draw(
    paths: Sequence[Path],
    solvers: Sequence[str],
    world_size: int | None = None,
) -> tuple[Timeline, ...]:
    """Return the timelines that documents allow.

    Those of plans and runs, predicted and measured. Where none has a timing, or ranks
    are given, those that are simulated of a profile and a network.

    Args:
        paths: the documents' files, or folders of them.
        solvers: whose iterations are simulated.
        world_size: ranks to simulate; None: as measured.

    Raises:
        InputError: the documents allow none, or do not fit together.
    """
    given = arrange(read(paths))
    _check(given, solvers, world_size)
    return _timelines(given, solvers, world_size)


def write(
    paths: Sequence[Path],
    output: Path,
    solvers: Sequence[str],
    world_size: int | None = None,
) -> None:
    """Write what documents allow: ``.html``, a page of everything, or timelines only.

    Args:
        paths: the documents' files, or folders of them.
        output: ends in ``.html``, ``.png`` or ``.json`` (Perfetto's trace).
        solvers: which are compared, and simulated.
        world_size: ranks to plan for; None: as measured.

    Raises:
        InputError: another suffix, or the documents do not fit together.
        OutputError: the file cannot be written.
    """
    if output.suffix not in (".html", ".png", ".json"):
        raise InputError(f"{output}: end the name in .html, .png or .json")
    check_writable(output, unlike=[file for path in paths for file in _files(path)])
    given = arrange(read(paths))
    _check(given, solvers, world_size)
    if output.suffix == ".html":
        page = to_page(_foretold(given, solvers, world_size))
        write_atomically(output, page)
    else:
        save(_timelines(given, solvers, world_size), output, given.title(world_size))


def _check(given: Given, solvers: Sequence[str], world_size: int | None) -> None:
    """Refuse unknown solvers, and ranks that nothing can be planned for."""
    for name in solvers:
        find_solver(name)
    if world_size is not None and (given.profile is None or given.network is None):
        raise InputError(
            f"--world-size {world_size}: give a profile and a network, from which so "
            "many ranks can be planned"
        )


def _timelines(
    given: Given, solvers: Sequence[str], world_size: int | None
) -> tuple[Timeline, ...]:
    found = drawn(given)
    profile, network = given.profile, given.network
    wanted = not found or world_size is not None
    if wanted and profile is not None and network is not None:
        problem = make_problem(profile, network, Settings(world_size=world_size))
        found += tuple(_simulated(summarise(problem, solvers, beside=()), solvers))
    if not found:
        raise InputError(
            "nothing to draw: give a profile and a network, and solvers to simulate, "
            "or plans or run records that hold a timing; -o report.html shows any "
            "document"
        )
    return found


def _foretold(given: Given, solvers: Sequence[str], world_size: int | None) -> Given:
    """Return ``given`` with what planning says of its profile and network."""
    profile, network = given.profile, given.network
    if profile is None or network is None:
        return given
    try:
        problem = make_problem(profile, network, Settings(world_size=world_size))
        summary = summarise(problem, solvers)
    except InputError as error:
        return replace(given, no_forecast=str(error))
    possible = [name for name in solvers if name not in summary.left_out]
    scaling: tuple[Summary, ...] = ()
    reason = ""
    ranks = sorted({*RANKS, network.world_size, problem.world_size})
    try:
        scaling = what_if(profile, network, ranks, solvers, problem.settings).summaries
    except InputError as error:
        reason = str(error)
    return replace(
        given,
        forecast=Forecast(summary, scaling, reason),
        simulated=tuple(_simulated(summary, possible)),
    )


def _simulated(summary: Summary, solvers: Sequence[str]) -> Iterator[Timeline]:
    """Yield an iteration by each solver; ranks that were asked for are in its title."""
    compute, asked = summary.problem.compute, summary.problem.settings.world_size
    ranks = "" if asked is None else f", {units.counted(asked, 'rank')}"
    for name in solvers:
        yield timeline(
            f"{name}{ranks}",
            summary.row(name).schedule,
            forward_s=compute.backward_start_s,
            update_s=compute.update_s,
        )
