"""What a verb leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from comm_plan import screen
from comm_plan.transports.ranks import place

if TYPE_CHECKING:
    from comm_plan.plans import Document


def finish(document: Document, output: Path, json: bool) -> None:
    """Write and show a result, on rank 0."""
    from comm_plan.report.tables import tables

    if place().rank > 0:
        return
    document.save(output)
    if json:
        print(document.to_json(), end="")
    for table in tables(document, briefly=True):
        screen.show(table)
    screen.say(f"wrote {output}")
