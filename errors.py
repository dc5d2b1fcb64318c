"""The exceptions of comm-plan.

::

    CommPlanError
    ├── InputError               what was given cannot be used      exit code 2
    │   ├── DocumentError        a file is not a valid document
    │   ├── MismatchError        plan, model and run do not fit together
    │   ├── WorkloadError        a workload cannot be found or loaded
    │   └── OutputError          a result cannot be written
    └── RunError                 a run failed while it was going    exit code 1
        ├── PeerError            another rank died or went silent
        ├── CollectiveError      a collective failed or gave a wrong result
        └── NonFiniteError       a gradient held inf or NaN

Every message is one line that names the value and the remedy; the command line prints
it, cut where it is very long.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LONGEST_LINE = 400
"""Characters of a message that the command line prints."""

UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that a terminal may obey instead of showing them, and that are no text: a
file's name may hold bytes that are none."""


class CommPlanError(Exception):
    """Base of every error that comm-plan raises on purpose."""

    exit_code = 1


class InputError(CommPlanError):
    """What was given cannot be used: a file, an option, an environment."""

    exit_code = 2


class DocumentError(InputError):
    """A file is not a valid profile, network, plan or run record."""


class MismatchError(InputError):
    """Plan, model and run do not fit together."""


class WorkloadError(InputError):
    """A workload cannot be found or loaded."""


class OutputError(InputError):
    """A result cannot be written where it was asked for."""


class RunError(CommPlanError):
    """A run failed while it was going."""


class PeerError(RunError):
    """Another rank died or went silent."""


class CollectiveError(RunError):
    """A collective failed, timed out or gave a wrong result."""


class NonFiniteError(RunError):
    """A gradient held inf or NaN and the run was told to stop on it."""


def unknown(what: str, name: str, known: Iterable[str]) -> InputError:
    """Return what to raise for a ``name`` that is not in the registry ``known``."""
    return InputError(f"{what} {name!r} is unknown: use one of {', '.join(known)}")


def one_line(text: str, at_most: int = LONGEST_LINE) -> str:
    """Return ``text`` in one printable line, cut in its middle."""
    line = printable(" ".join(text.split()))
    if len(line) <= at_most:
        return line
    half = (at_most - 5) // 2
    return f"{line[:half]} ... {line[-half:]}"


def printable(text: str) -> str:
    """Return ``text`` with its :data:`UNPRINTABLE` characters written as escapes."""
    return UNPRINTABLE.sub(lambda match: repr(match[0])[1:-1], text)
