"""Files: read within a bound; written whole or not at all, where they really are.

What is written goes into a temporary file beside the target and takes its place. A
target that is there keeps its mode and, where the system lets us, its owner; a link is
followed and stays a link; what is read-only is refused. A device or a pipe, which
nothing can take the place of, is written to.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from comm_plan.errors import DocumentError, OutputError

MAX_FILE_NBYTES = 2**30
"""Files that are larger hold no document."""


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of the file at ``path``.

    Raises:
        DocumentError: it cannot be read, is no UTF-8, or exceeds
            :data:`MAX_FILE_NBYTES`.
    """
    try:
        with Path(path).open("rb") as stream:
            raw = stream.read(MAX_FILE_NBYTES + 1)
        if len(raw) > MAX_FILE_NBYTES:
            raise DocumentError(
                f"{path}: is larger than 1 GiB: give a document of comm-plan"
            )
        return raw.decode("utf-8-sig")  # a byte order mark is no text
    except (OSError, ValueError) as error:
        raise DocumentError(f"{path}: cannot be read: {_reason(error)}") from None


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write ``content``, text as UTF-8, to ``path`` through a temporary file beside it.

    Raises:
        OutputError: the file cannot be written; whatever was there is untouched.
    """
    raw = content.encode() if isinstance(content, str) else content
    target = _target(path)
    try:
        if _is_stream(target):
            target.write_bytes(raw)
            return
        handle, temporary = _temporary_beside(target)
    except OSError as error:
        raise _cannot_write(path, error) from None
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
        _make_alike(temporary, target)
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _cannot_write(path, error) from None


def check_writable(
    path: str | os.PathLike[str], unlike: Iterable[str | os.PathLike[str]] = ()
) -> None:
    """Fail now, before long work, if ``path`` could not be written afterwards.

    Args:
        path: the file.
        unlike: files that it must not take the place of: they are read.

    Raises:
        OutputError: the folder is missing or not writable, or ``path`` is a folder,
            read-only, or among ``unlike``.
    """
    target = _target(path)
    if _is_stream(target):
        return
    if target in {Path(os.path.realpath(other)) for other in unlike}:
        raise OutputError(f"{path}: it is read too, and would be lost: give another -o")
    try:
        handle, temporary = _temporary_beside(target)
    except OSError as error:
        raise _cannot_write(path, error) from None
    os.close(handle)
    temporary.unlink()


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make the folder ``path`` and those above it, unless they are there.

    Raises:
        OutputError: it cannot be made.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot be made: {_reason(error)}") from None


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the file that ``path`` leads to, which may not exist yet.

    A device or a pipe is returned as it was called: what ``/dev/stdout`` leads to may
    have no other name.

    Raises:
        OutputError: it is a folder, read-only, or links in a circle.
    """
    try:
        called = Path(path)
        target = called if _is_stream(called) else Path(os.path.realpath(path))
        if target.is_symlink() and not target.exists():
            raise OSError("its links lead in a circle")
        if target.is_dir():
            raise OSError("it is a folder")
        # The mode and not os.access: to root every file is writable.
        if target.exists() and not target.stat().st_mode & 0o222:
            raise OSError("it is read-only: chmod u+w it, or give another name")
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from None
    return target


def _is_stream(path: Path) -> bool:
    """Return whether there is a device or a pipe, which nothing can take the place of.

    Raises:
        OSError: the system does not say.
    """
    return path.exists() and not (path.is_file() or path.is_dir())


def _temporary_beside(target: Path) -> tuple[int, Path]:
    """Return a new file in the folder of ``target``, open, and its name."""
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    return handle, Path(temporary)


def _make_alike(temporary: Path, target: Path) -> None:
    """Give ``temporary`` the mode and owner of ``target``, or those of a new file."""
    try:
        there = target.stat()
    except FileNotFoundError:
        temporary.chmod(0o666 & ~_umask())
        return
    with suppress(PermissionError):  # only root may give files away
        os.chown(temporary, there.st_uid, there.st_gid)
    temporary.chmod(there.st_mode & 0o7777)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _cannot_write(path: str | os.PathLike[str], error: Exception) -> OutputError:
    return OutputError(f"{path}: cannot be written: {_reason(error)}")


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is no text"
    return (getattr(error, "strerror", None) or str(error)).lower()
