"""What a section consists of; each block is laid out by the template that it names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup

from comm_plan import units

NONE = "-"


@dataclass(frozen=True)
class Cell:
    """A table's cell: its text, and the number it is sorted by, where it is one."""

    text: str
    value: float | None = None


def seconds(value_s: float | None) -> Cell:
    """Return a duration, where there is one."""
    return Cell(NONE) if value_s is None else Cell(units.seconds(value_s), value_s)


def nbytes(value: float | None) -> Cell:
    """Return a size, where there is one."""
    return Cell(NONE) if value is None else Cell(units.nbytes(value), value)


def times(value: float | None) -> Cell:
    """Return a ratio, where there is one."""
    return Cell(NONE) if value is None else Cell(units.times(value), value)


def count(value: int) -> Cell:
    """Return a whole number."""
    return Cell(f"{value:,}", value)


@dataclass(frozen=True)
class Table:
    """Rows under a header that sorts them; long ones are cut until asked for.

    Attributes:
        caption: what it lists.
        header: the columns' names.
        rows: one cell for each column.
        folded: shown only when asked for.
    """

    template: ClassVar[str] = "table.html"
    AT_ONCE: ClassVar[int] = 12

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    folded: bool = False

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Whether each column holds numbers."""
        return tuple(
            any(row[i].value is not None for row in self.rows)
            for i in range(len(self.header))
        )


@dataclass(frozen=True)
class Key:
    """An entry of a legend: a name and its sample."""

    name: str
    sample: Markup


@dataclass(frozen=True)
class Figure:
    """A drawing with its title, its legend, and more to say."""

    template: ClassVar[str] = "figure.html"

    title: str
    drawing: Markup
    keys: tuple[Key, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Figures:
    """Figures side by side, as many as there is room for."""

    template: ClassVar[str] = "figures.html"

    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    template: ClassVar[str] = "text.html"

    text: str


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    template: ClassVar[str] = "heading.html"

    text: str


Block = object
"""Whatever has a ``template`` that lays it out."""


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        anchor: what links lead to.
        title: its heading.
        blocks: what it holds.
    """

    anchor: str
    title: str
    blocks: tuple[Block, ...]


def section(anchor: str, title: str, blocks: Iterable[Block]) -> Section | None:
    """Return the section of ``blocks``, None if there are none."""
    found = tuple(blocks)
    return Section(anchor, title, found) if found else None
