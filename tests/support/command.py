"""The command line in the process of the test, and how it refuses."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass

import pytest

ERROR = re.compile(r"^(?:comm-plan: error: |Error: |╭─ Error ─)", re.MULTILINE)
BORDERS = str.maketrans(dict.fromkeys("╭╮╰╯│─", " "))


@dataclass
class Command:
    """Runs ``comm-plan`` with given words; nothing but the process is spared."""

    _monkeypatch: pytest.MonkeyPatch
    _capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: object) -> Ended:
        """Return how it ended."""
        from comm_plan import cli

        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["comm-plan", *map(str, words)])
            patch.setattr(os, "_exit", sys.exit)
            self._capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                cli.main()
        written = self._capsys.readouterr()
        return Ended(ended.value.code or 0, written.out, written.err)

    def refused(self, *words: object, code: int = 2) -> str:
        """Return the words of the one error with which it must end."""
        return self(*words).refusal(code)


@dataclass(frozen=True)
class Ended:
    """What a process leaves behind."""

    returncode: int
    stdout: str
    stderr: str

    def refusal(self, code: int) -> str:
        """Return the words of its one error; it must have ended with ``code``."""
        assert self.returncode == code, self.stderr
        assert "Traceback" not in self.stderr
        assert len(ERROR.findall(self.stderr)) == 1, self.stderr
        return " ".join(self.stderr.translate(BORDERS).split())
