"""Follows the recipes of CONTRIBUTING.md on a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = [
    *("collectives", "commbench", "compressors", "planner", "plans", "profiler"),
    *("report", "runtime", "transports", "workloads", "tests", "docs"),
]
BLOCK = re.compile(r"`([\w/.]+)`:\n\n```(python|diff)\n(.*?)```", re.DOTALL)


def recipe(title):
    """Return the (file, kind, text) of every block under the heading ``title``."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split(f"### {title}\n", 1)[1].split("\n### ", 1)[0]
    blocks = BLOCK.findall(section)
    assert blocks, f"no labelled code under {title}"
    return blocks


class Copy:
    """The package in another folder, where recipes can be followed.

    Attributes:
        folder: the copied repository.
        changed: for each recipe the files that it touched.
    """

    def __init__(self, parent):
        """Copy what is imported and tested."""
        self.folder = parent / "comm_plan"
        self.changed = {}
        self.folder.mkdir()
        for room in ROOMS:
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / room, self.folder / room, ignore=skip)
        for pattern in ("*.py", "*.toml", "*.md"):
            for file in ROOT.glob(pattern):
                shutil.copy(file, self.folder)

    def follow(self, title):
        """Do what the recipe ``title`` says."""
        for name, kind, text in recipe(title):
            path = self.folder / name
            if kind == "python":
                assert not path.exists(), f"{name} is there already"
                path.write_text(text, encoding="utf-8")
            else:
                before = path.read_text(encoding="utf-8")
                path.write_text(changed(before, text), encoding="utf-8")
            self.changed.setdefault(title, []).append(name)

    def python(self, *words, **options):
        """Run Python in the copy; it must succeed. Return what it printed."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder.parent)}
        done = subprocess.run(
            [sys.executable, *map(str, words)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **{"cwd": self.folder, **options},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def verb(self, *words, **options):
        """Run ``comm-plan`` in the copy."""
        return self.python("-m", "comm_plan.cli", *words, **options)


def changed(text, diff):
    """Return ``text`` with a recipe's diff applied: hunks are parted by ``...``."""
    for hunk in re.split(r"^\.\.\.\n", diff, flags=re.MULTILINE):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        assert text.count(before) == 1, f"found {text.count(before)} times:\n{before}"
        text = text.replace(before, after)
    return text
