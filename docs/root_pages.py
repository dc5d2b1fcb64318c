"""Brings what lies in the repository's root into the site.

README.md, CONTRIBUTING.md and CHANGELOG.md are read where they are; their links are
rewritten, since the site's root is ``docs``. The package is shown to the reader of
docstrings as a copy, without ``.venv`` and all else that the root holds. What each
command takes is written by Typer.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""File of the root -> page of the site."""

_LINK = re.compile(r"\]\((?:docs/|\.\./)?([\w./-]+)(#[\w-]+)?\)")


def relinked(markdown: str) -> str:
    """Return a page with links to files as they are in the site."""

    def link(match: re.Match[str]) -> str:
        return f"]({PAGES.get(match[1], match[1])}{match[2] or ''})"

    return _LINK.sub(link, markdown)


def on_startup(**_: object) -> None:
    """Copy the package's source to ``.pkg/api/comm_plan``."""
    root = Path(__file__).parents[1]
    package = root / ".pkg" / "api" / "comm_plan"
    shutil.rmtree(package, ignore_errors=True)
    rooms = [init.parent for init in root.glob("[a-z]*/__init__.py")]
    for source in [
        *root.glob("*.py"),
        *(file for r in rooms for file in r.rglob("*.py")),
    ]:
        copy = package / source.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root."""
    root = Path(config.config_file_path).parent
    for source, page in PAGES.items():
        text = relinked((root / source).read_text())
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "commands.md", content=commands()))
    return files


def commands() -> str:
    """Return the arguments and options of every command."""
    typer = [sys.executable, "-m", "typer", "comm_plan.cli", "utils", "docs"]
    done = subprocess.run(
        [*typer, "--name", "comm-plan"], check=True, capture_output=True, text=True
    )
    return done.stdout
