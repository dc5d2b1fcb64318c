"""What a chapter of the page is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from comm_plan import units

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """A table; the first column names the rows.

    Attributes:
        head: names of the columns.
        rows: their cells; None: there is nothing to say.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Section:
    """One table or figure of a paper.

    Attributes:
        title: which one, and what it shows.
        text: how ours was computed, what differs and why.
        table: the figures.
    """

    title: str
    text: str
    table: Table


@dataclass(frozen=True)
class Chapter:
    """A paper.

    Attributes:
        title: its short name.
        source: where it appeared.
        sections: its tables and figures.
    """

    title: str
    source: str
    sections: tuple[Section, ...]


@dataclass(frozen=True)
class Comparison:
    """A printed figure beside ours.

    Attributes:
        what: it says.
        published: as printed, in ``unit``.
        ours: computed, in ``unit``.
        unit: ``s``, ``x``, ``%`` or another one; for ``%`` the figures are shares.
    """

    what: str
    published: float
    ours: float
    unit: str

    @property
    def ratio(self) -> float:
        """Ours over the published."""
        return self.ours / self.published


def side_by_side(comparisons: Iterable[Comparison]) -> Table:
    """Return a row for each comparison."""
    rows = (
        (
            c.what,
            quantity(c.published, c.unit),
            quantity(c.ours, c.unit),
            f"{c.ratio:.2f}",
        )
        for c in comparisons
    )
    return table(("", "published", "ours", "ours / published"), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Table:
    """Return a table of any sequences."""
    return Table(tuple(head), tuple(tuple(row) for row in rows))


def quantity(value: float, unit: str) -> str:
    """Return a figure with its unit, to three digits."""
    if unit == "s":
        return units.seconds(value)
    if unit == "%":
        return units.percent(value)
    if unit == "x":
        return units.times(value)
    return f"{value:.3g} {unit}".strip()
