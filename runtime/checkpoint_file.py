"""One file of a checkpoint, and beside it the checksum of what was written.

``rank-00000.pt.sha256`` is in the format of ``sha256sum --check``. A file that was torn
or has a flipped bit does not agree with it and is refused. Files are read without
running any code in them (``weights_only``), and into main memory: the ranks that read
may have other devices than those that wrote.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

import torch

from comm_plan.errors import InputError, one_line

_CHUNK_NBYTES = 1 << 20

LONGEST_CAUSE = 200
"""Characters of what is wrong with a file, in a message."""


def write(path: Path, content: dict[str, Any]) -> str | None:
    """Write ``content`` and its checksum; both are on the disk when this returns.

    Returns:
        Why it cannot be written: the disk is full, say. None if it is.

    Raises:
        InputError: it holds objects that could not be read again.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        _write(path, content)
    except (OSError, RuntimeError) as error:
        return f"{path}: cannot be written: {one_line(str(error), LONGEST_CAUSE)}"
    return None


def read_all(folder: Path, names: Sequence[str]) -> tuple[dict[str, Any], str | None]:
    """Return what :func:`write` wrote into the files ``names`` of ``folder``.

    With it why one cannot be read; None: all are as they were written.
    """
    contents: dict[str, Any] = {}
    for path in (folder / name for name in names):
        try:
            expected = _checksum_of(path).read_text().split()[:1]
            if expected != [_sha256(path)]:
                return {}, f"{path}: is damaged: its SHA-256 is not that beside it"
            contents[path.name] = torch.load(
                path, weights_only=True, map_location="cpu"
            )
        except (OSError, ValueError, RuntimeError, pickle.UnpicklingError) as error:
            return {}, f"{path}: cannot be read: {one_line(str(error), LONGEST_CAUSE)}"
    return contents, None


def _write(path: Path, content: dict[str, Any]) -> None:
    with path.open("wb") as file:
        hashing = _Hashing(file)
        try:
            torch.save(content, cast("IO[bytes]", hashing))
        except RuntimeError as error:
            raise hashing.error or error from None
        _flush_to_disk(file)
    foreign = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    if foreign:
        raise InputError(
            f"{path}: holds {', '.join(sorted(foreign))}, which files could bring in "
            "to run code: call torch.serialization.add_safe_globals for them where "
            "the workload is made, or leave --checkpoint out"
        )
    with _checksum_of(path).open("w") as checksum:
        checksum.write(f"{hashing.sha256.hexdigest()}  {path.name}\n")
        _flush_to_disk(checksum)


class _Hashing:
    """A file to write to, its SHA-256, and the error that torch would hide."""

    def __init__(self, file: IO[bytes]) -> None:
        self.sha256 = hashlib.sha256()
        self.error: OSError | None = None
        self._file = file

    def write(self, data: bytes) -> int:
        """Write and count in ``data``."""
        self.sha256.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()


def _checksum_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_NBYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _flush_to_disk(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())
