"""Chapters as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from comm_plan.reproduction.values import Cell, Chapter, Section, Table

NOTHING = "-"


def page(title: str, text: str, chapters: Iterable[Chapter]) -> str:
    """Return a page."""
    parts = [f"# {title}", text, *(part for c in chapters for part in _chapter(c))]
    return "\n\n".join(parts) + "\n"


def _chapter(chapter: Chapter) -> list[str]:
    parts = [f"## {chapter.title}", f"{chapter.source}."]
    return [*parts, *(part for s in chapter.sections for part in _section(s))]


def _section(section: Section) -> list[str]:
    return [f"### {section.title}", section.text, _table(section.table)]


def _table(table: Table) -> str:
    rule = ["---", *["---:"] * (len(table.head) - 1)]
    return "\n".join(_row(cells) for cells in (table.head, rule, *table.rows))


def _row(cells: Iterable[Cell]) -> str:
    return f"| {' | '.join(NOTHING if c is None else str(c) for c in cells)} |"
