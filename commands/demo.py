"""``comm-plan demo``: the whole loop on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    folder: Annotated[Path, typer.Option("-o", "--output")] = Path("demo-output"),
    ranks: Annotated[
        int | None,
        typer.Option("--local-ranks", min=2, help="Default: a core each, 2 to 4."),
    ] = None,
) -> None:
    """Run the whole loop on this machine: profile, network, plan, training."""
    from comm_plan.demo import a_core_each, run

    code = run(folder, ranks or a_core_each())
    if code:
        raise typer.Exit(code)
