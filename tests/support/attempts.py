"""Verbs on hostile files: they succeed, or refuse in one line, and soon."""

from __future__ import annotations

import io
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from unittest.mock import patch

from typer.main import get_command

from comm_plan.errors import InputError
from comm_plan.tests.support.command import Ended

LONGEST_S = 3.0
"""Of this process's own time, so that a busy machine fails nothing."""

LONGEST_LINE = 500

NONSENSE = re.compile(r"\b(?:nan|inf)\b")
"""What numbers that are none are printed as."""


class TookTooLong(BaseException):
    """A verb took more than ``LONGEST_S``; nothing that it catches."""


@contextmanager
def in_time() -> Iterator[None]:
    """Stop what goes on for longer than ``LONGEST_S``."""

    def stop(*_: object) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def attempt(*words: object) -> Ended:
    """Return how ``comm-plan`` with these words ends, run within this process.

    Raises:
        Exception: what was raised, if that is no refusal.
    """
    from comm_plan import cli, screen

    def fail(error: Exception, code: int) -> None:
        if code != InputError.exit_code:
            raise error
        screen.explain(error)
        raise SystemExit(code)

    out, err = io.StringIO(), io.StringIO()
    parsed = patch.multiple(cli, app=_parser(), _fail=fail)
    with redirect_stdout(out), redirect_stderr(err), parsed:
        try:
            with in_time():
                cli.main([str(word) for word in words])
        except SystemExit as ended:
            return Ended(ended.code or 0, out.getvalue(), err.getvalue())


@cache
def _parser() -> object:
    """Return the parser of words, which takes longer to make than most verbs."""
    from comm_plan import cli

    return get_command(cli.app)


def check(ended: Ended) -> bool:
    """Return whether it succeeded; it must have, or say in one line why not."""
    if ended.returncode == 0:
        assert not NONSENSE.search(ended.stderr), ended.stderr
        return True
    assert ended.returncode == 2, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("comm-plan: error: "), line
    assert len(line) <= LONGEST_LINE, line
    return False
