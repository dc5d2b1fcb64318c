"""Options that verbs share: one value in the verb, one option a field outside."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from comm_plan.commands.options import Group, grouped


@dataclass(frozen=True)
class Size(Group):
    panel = "Size"
    width: Annotated[int, typer.Option("-w", "--width", min=1)] = 2
    name: Annotated[str | None, typer.Option()] = None


def test_a_group_of_options_reaches_the_verb_as_one_value():
    app, seen = typer.Typer(), []

    @app.command()
    @grouped
    def verb(*, what: str, loud: bool = False, size: Size) -> None:
        seen.append((what, loud, size))

    run = CliRunner().invoke
    assert run(app, ["a"]).exit_code == 0
    assert run(app, ["b", "--loud", "--name", "n", "-w", "3"]).exit_code == 0
    assert run(app, ["c", "-w", "0"]).exit_code == 2
    assert "─ Size ─" in run(app, ["--help"]).output
    assert seen == [("a", False, Size()), ("b", True, Size(3, "n"))]


def test_an_argument_that_may_be_left_out_stays_one():
    app, seen = typer.Typer(), []

    @app.command()
    @grouped
    def verb(
        *, what: Annotated[str | None, typer.Argument()] = None, size: Size
    ) -> None:
        seen.append(what)

    run = CliRunner().invoke
    assert run(app, ["a"]).exit_code == 0
    assert run(app, []).exit_code == 0
    assert seen == ["a", None]
