"""The documents that the page was made of."""

from __future__ import annotations

from collections.abc import Iterator

from comm_plan import units
from comm_plan.plans import Document
from comm_plan.report.page.blocks import NONE, Block, Cell, Section, Table, section
from comm_plan.report.page.given import Given


def sources(given: Given) -> Section | None:
    """Return every document: its file, its kind, where it was made."""
    return section("documents", "Documents", _blocks(given))


def _blocks(given: Given) -> Iterator[Block]:
    yield Table(
        "what this page was made of",
        ("file", "kind", "ranks", "backend", "measured on", "SHA-256"),
        tuple(_row(name, document) for name, document in given.files),
    )


def _row(name: str, document: Document) -> tuple[Cell, ...]:
    kind = document.SCHEMA.removeprefix("comm-plan/")
    ranks = getattr(document, "world_size", None)
    return (
        Cell(name),
        Cell(kind),
        Cell(NONE) if ranks is None else Cell(str(ranks), ranks),
        Cell(getattr(document, "backend", NONE)),
        Cell(_where(document) or NONE),
        Cell(document.sha256[:12]),
    )


def _where(document: Document) -> str:
    """Return the device, the hosts and the environment, as far as they are told."""
    device = getattr(document, "device", None)
    parts = [f"{device.type}, {device.name}"] if device else []
    hosts = dict.fromkeys(getattr(document, "hosts", ()))
    if hosts:
        parts.append(units.counted(len(hosts), "host"))
    environment = getattr(document, "environment", {})
    parts += [f"{name} {value}" for name, value in environment.items()]
    return ", ".join(parts)
