"""Writes the JSON Schema of every document into ``plans/schemas``."""

from __future__ import annotations

import json
from pathlib import Path

from comm_plan.plans import DOCUMENTS
from comm_plan.plans.document import Document

FOLDER = Path(__file__).parent / "schemas"


def schema_path(document: type[Document]) -> Path:
    """Return where the schema of ``document`` is kept."""
    return FOLDER / f"{document.__name__.lower()}.schema.json"


def schema_text(document: type[Document]) -> str:
    """Return the schema of ``document`` as the file's text."""
    return json.dumps(document.json_schema(), indent=2) + "\n"


def write_schemas() -> None:
    """Write all schemas."""
    FOLDER.mkdir(exist_ok=True)
    for document in DOCUMENTS:
        schema_path(document).write_text(schema_text(document), encoding="utf-8")


if __name__ == "__main__":
    write_schemas()
