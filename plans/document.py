"""What every document shares: bounded fields, versions, one-line errors.

A document is a frozen pydantic model whose JSON starts with ``schema`` and ``version``.
Every field is of a type with bounds, those here or narrower ones, which the JSON
Schemas show too (what a run measured of its loss may be any finite number): whatever is
read can be computed with, and printed.

Format history: version 1 of each document is the first.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import Self

from comm_plan.errors import DocumentError, one_line
from comm_plan.plans.files import read_text, write_atomically
from comm_plan.plans.problems import LONGEST_VALUE, first_problem

MAX_RANKS = 2**20
MAX_BATCH_SIZE = 2**31
MAX_TENSORS = 10_000_000
MAX_SEED = 2**32 - 1
"""Seeds that are asked for: others are made of them, and hold 64 bits too."""
MAX_INTEGER = 2**53
"""Whole numbers up to here are exact as floating-point numbers too."""
MAX_DEPTH = 64
"""How deep a document's JSON may be nested."""
YEAR_S = 366 * 24 * 3600.0

_IN_ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f]*$"


def _or_zero(least: float) -> AfterValidator:
    """Read values below ``least`` as 0: they are what is left of rounding."""
    return AfterValidator(lambda value: value if value >= least else 0.0)


Seconds = Annotated[float, Field(ge=0, le=YEAR_S), _or_zero(1e-15)]
SecondsPerByte = Annotated[float, Field(ge=0, le=YEAR_S), _or_zero(1e-24)]
PositiveSeconds = Annotated[float, Field(ge=1e-12, le=YEAR_S)]
Nbytes = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
MeanNbytes = Annotated[float, Field(ge=0, le=MAX_INTEGER)]
Numel = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
PositiveCount = Annotated[int, Field(gt=0, le=MAX_INTEGER)]
Ranks = Annotated[int, Field(gt=0, le=MAX_RANKS)]
Seed = Annotated[int, Field(ge=0, lt=2**64)]
BytesPerSecond = Annotated[float, Field(ge=1, le=MAX_INTEGER)]
Name = Annotated[str, Field(max_length=1000, pattern=_IN_ONE_LINE)]
Sentence = Annotated[str, Field(max_length=10_000, pattern=_IN_ONE_LINE)]


class Value(BaseModel):
    """A frozen part of a document; unknown fields, inf and NaN are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, ser_json_inf_nan="strings"
    )


class Document(Value):
    """A whole JSON document with ``schema`` and ``version``."""

    SCHEMA: ClassVar[str]
    VERSION: ClassVar[int] = 1

    def to_json(self) -> str:
        """Return the document's one canonical text, ending in a newline."""
        head = {"schema": self.SCHEMA, "version": self.VERSION}
        body = self.model_dump(mode="json", exclude_none=True)
        return json.dumps({**head, **body}, indent=2, allow_nan=False) + "\n"

    @property
    def sha256(self) -> str:
        """SHA-256 of all that is not as by default.

        So a document keeps it when later versions give it fields that it does not have.
        """
        body = self.model_dump(mode="json", exclude_defaults=True)
        return hashlib.sha256(json.dumps([self.SCHEMA, body]).encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str, source: str = "<text>") -> Self:
        """Parse and check ``text``.

        Args:
            text: the JSON text.
            source: the file's name, for messages.

        Raises:
            DocumentError: not JSON, another schema, an unknown version, or a field that
                is missing, unknown or out of range.
        """
        raw = parse_object(text, source)
        _check_head(raw, cls.SCHEMA, cls.VERSION, source)
        body = {k: v for k, v in raw.items() if k not in ("schema", "version")}
        with refused_as(source):
            return cls.model_validate_json(json.dumps(body))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read and check the document in the file at ``path``.

        Raises:
            DocumentError: the file cannot be read, or as :meth:`from_json`.
        """
        return cls.from_json(read_text(path), source=str(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the document to ``path``, whole or not at all.

        Raises:
            OutputError: the file cannot be written.
        """
        write_atomically(path, self.to_json())

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of the whole document."""
        schema = cls.model_json_schema()
        head = {
            "schema": {"const": cls.SCHEMA},
            "version": {"const": cls.VERSION},
        }
        schema["properties"] = {**head, **schema["properties"]}
        schema["required"] = [*head, *schema.get("required", [])]
        schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
        return schema


def read_schema(path: str | os.PathLike[str]) -> object:
    """Return the ``schema`` of the document in the file at ``path``.

    Raises:
        DocumentError: the file cannot be read, or holds no JSON object.
    """
    return parse_object(read_text(path), str(path)).get("schema")


def without(field: str, source: str) -> DocumentError:
    """Return what to raise of a file that lacks what all documents begin with."""
    return DocumentError(f"{source}: has no {field}: give a document of comm-plan")


@contextmanager
def refused_as(source: str) -> Iterator[None]:
    """Say in one line what is wrong with a value that is made within.

    Args:
        source: what holds the value, for the message.

    Raises:
        DocumentError: a field is missing, unknown or out of range.
    """
    try:
        yield
    except ValidationError as error:
        raise DocumentError(f"{source}: {first_problem(error)}") from None


def parse_object(text: str, source: str) -> Mapping[str, Any]:
    """Return the JSON object in ``text``.

    Raises:
        DocumentError: not JSON, no object, nested too deep, or with a number that is
            none.
    """

    def refuse(constant: str) -> Any:
        raise DocumentError(
            f"{source}: holds {constant}, which is no number: measure again"
        )

    try:
        raw = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        if not text[error.pos :].strip() or error.msg.startswith("Unterminated"):
            raise DocumentError(
                f"{source}: not JSON: it ends in line {error.lineno}, unfinished"
            ) from None
        raise DocumentError(
            f"{source}: not JSON: {error.msg} in line {error.lineno}"
        ) from None
    except RecursionError:
        raise DocumentError(_too_deep(source)) from None
    except ValueError:  # Python does not convert integers of thousands of digits
        raise DocumentError(
            f"{source}: holds an integer beyond 2^53: measure again"
        ) from None
    if not isinstance(raw, dict):
        raise DocumentError(f"{source}: a document is a JSON object, this is not")
    _check_depth(raw, source)
    return raw


def _check_depth(raw: object, source: str) -> None:
    level = [raw]
    for _ in range(MAX_DEPTH):
        level = [child for value in level for child in _children(value)]
        if not level:
            return
    raise DocumentError(_too_deep(source))


def _children(value: object) -> Iterator[object]:
    children = value.values() if isinstance(value, dict) else value
    return (c for c in children if isinstance(c, dict | list))  # type: ignore


def _too_deep(source: str) -> str:
    return f"{source}: is nested deeper than {MAX_DEPTH}: give a document of comm-plan"


def _check_head(raw: Mapping[str, Any], schema: str, version: int, source: str) -> None:
    stated = raw.get("schema")
    if stated is None:
        raise without("schema", source)
    if stated != schema:
        raise DocumentError(
            f"{source}: schema is {one_line(repr(stated), LONGEST_VALUE)}, "
            f"{schema!r} is wanted here: is another file meant, or another order?"
        )
    numbered = raw.get("version")
    if numbered is None:
        raise without("version", source)
    if numbered != version:
        raise DocumentError(
            f"{source}: version {one_line(repr(numbered), LONGEST_VALUE)} of {schema} "
            f"is unknown, this comm-plan reads version {version}: write the file "
            "again, or upgrade"
        )
