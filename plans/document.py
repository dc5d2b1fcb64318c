"""What every document shares: strict fields, versions, one-line errors, atomic files.

A document is a frozen pydantic model whose JSON starts with ``schema`` and ``version``.
Format history: version 1 of each document is the first.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import Self

from comm_plan.errors import DocumentError, OutputError

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Nbytes = Annotated[int, Field(ge=0)]
Numel = Annotated[int, Field(ge=0)]


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
        """SHA-256 of :meth:`to_json`, equal to that of the file that ``save`` wrote."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

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
        raw = _parse(text, source)
        _check_head(raw, cls.SCHEMA, cls.VERSION, source)
        body = {k: v for k, v in raw.items() if k not in ("schema", "version")}
        try:
            return cls.model_validate_json(json.dumps(body))
        except ValidationError as error:
            raise DocumentError(f"{source}: {_first_problem(error)}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read and check the document in the file at ``path``.

        Raises:
            DocumentError: the file cannot be read, or as :meth:`from_json`.
        """
        return cls.from_json(_read(path), source=str(path))

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
    return _parse(_read(path), str(path)).get("schema")


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write ``content``, text as UTF-8, to ``path`` through a temporary file beside it.

    Raises:
        OutputError: the file cannot be written; whatever was there is untouched.
    """
    raw = content.encode() if isinstance(content, str) else content
    handle, temporary = _temporary_beside(path)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"{path}: cannot be written: {_reason(error)}") from None


def check_writable(path: str | os.PathLike[str]) -> None:
    """Fail now, before long work, if ``path`` could not be written afterwards.

    Raises:
        OutputError: the folder is missing or not writable, or ``path`` is a folder.
    """
    if Path(path).is_dir():
        raise OutputError(f"{path}: cannot be written: it is a folder")
    handle, temporary = _temporary_beside(path)
    os.close(handle)
    temporary.unlink()


def _temporary_beside(path: str | os.PathLike[str]) -> tuple[int, Path]:
    """Return a new file in the folder of ``path``, open, and its name."""
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.name}."
        )
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {_reason(error)}") from None
    return handle, Path(temporary)


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make the folder ``path`` and those above it, unless they are there.

    Raises:
        OutputError: it cannot be made.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: cannot be made: {_reason(error)}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


def _read(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DocumentError(f"{path}: cannot be read: {_reason(error)}") from None


def _parse(text: str, source: str) -> Mapping[str, Any]:
    def refuse(constant: str) -> Any:
        raise DocumentError(
            f"{source}: holds {constant}, which is no number: measure again"
        )

    try:
        raw = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise DocumentError(
            f"{source}: not JSON: {error.msg} in line {error.lineno}"
        ) from None
    if not isinstance(raw, dict):
        raise DocumentError(f"{source}: a document is a JSON object, this is not")
    return raw


def _check_head(raw: Mapping[str, Any], schema: str, version: int, source: str) -> None:
    stated = raw.get("schema")
    if stated != schema:
        raise DocumentError(f'{source}: schema is {stated!r}, "{schema}" is needed')
    if raw.get("version") != version:
        raise DocumentError(
            f"{source}: version {raw.get('version')!r} of {schema} is unknown, this "
            f"comm-plan reads version {version}: write the file again, or upgrade"
        )


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in problem["loc"]) or "document"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    value = problem["input"]
    if problem["type"] == "missing" or isinstance(value, dict | list | tuple | Value):
        return f"{place}: {message}"
    return f"{place} = {value!r}: {message}"
