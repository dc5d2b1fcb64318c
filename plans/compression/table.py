"""The table of methods in ``docs/compression.md``, from the specs.

::

    python -m comm_plan.plans.compression.table    # writes it there
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from comm_plan.plans.compression.registry import SPECS
from comm_plan.plans.compression.spec import Spec
from comm_plan.plans.pages import filled

PAGE = Path(__file__).parents[2] / "docs" / "compression.md"

HEAD = (
    "method",
    "sends",
    "options",
    "collective",
    "bytes an element",
    "ratio",
    "state",
)
_SHAPE = (1000, 1000)


def methods_table() -> str:
    """Return a Markdown table with one row for every method."""
    rows = [HEAD, ("---",) * len(HEAD)]
    rows += [row for spec in SPECS for row in _rows(spec)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def on_page(text: str) -> str:
    """Return the page ``text`` with the table of today between its markers."""
    return filled(text, "methods", methods_table())


def _rows(spec: type[Spec]) -> Iterator[tuple[str, ...]]:
    example = spec.example()
    sends = (spec.__doc__ or "").splitlines()[0].rstrip(".").replace("``", "`")
    options = ", ".join(
        f"`{name}` {_text(value)}"
        for name, value in example.model_dump(exclude={"kind"}).items()
    )
    for name, collective in spec.methods.items():
        limit = spec.largest_world_size.get(collective)
        yield (
            f"`{name}`",
            sends,
            options or "-",
            f"{collective}, at most {limit} ranks" if limit else collective,
            f"{example.planned_nbytes([_SHAPE], collective) / math.prod(_SHAPE):.3g}",
            f"{example.ratio:g}",
            ", ".join(example.state) or "-",
        )


def _text(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    PAGE.write_text(on_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
