"""Pages of the documentation whose tables are made from code or results.

Such a table lies between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``.
"""

from __future__ import annotations


def filled(page: str, name: str, table: str) -> str:
    """Return the text ``page`` with ``table`` between the markers ``name``.

    Raises:
        ValueError: the markers are not there once each.
    """
    begin, end = (f"<!-- {name}: {where} -->" for where in ("begin", "end"))
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{table}{end}{after}"
