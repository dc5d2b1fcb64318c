"""``comm-plan reproduce``: the papers' figures beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comm_plan import screen


def reproduce(
    output: Annotated[Path, typer.Option("-o", "--output")] = Path("reproduction.md"),
    models_only: Annotated[
        bool, typer.Option("--models-only", help="Do not train: as was trained before.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option("--trainings", help="Where trainings are kept. Default: nowhere."),
    ] = None,
) -> None:
    """Set the papers' figures beside ours, on a page; trains for some minutes."""
    from rich.markdown import Markdown

    from comm_plan.plans import check_writable
    from comm_plan.plans.files import write_atomically
    from comm_plan.reproduction.page import reproduced

    check_writable(output)
    text = reproduced(folder, train=not models_only, progress=screen.say)
    write_atomically(output, text)
    screen.show(Markdown(text))
    screen.say(f"wrote {output}")
