"""The command line: verbs, and what is said when one of them fails.

Each verb is a module of :mod:`comm_plan.commands`.

Exit codes: 0 done, 1 a run failed, 2 bad input; one line says why, on the rank that
knows (``--debug`` shows the traceback). Bad input is mostly found by all ranks, and a
launcher ends them when the first one leaves: so rank 0 says it at once, and any other
that is still there a second later says it too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn, cast

import typer

from comm_plan import __version__, screen
from comm_plan.commands.benchmark_network import benchmark_network
from comm_plan.commands.compare import compare
from comm_plan.commands.demo import demo
from comm_plan.commands.profile import profile
from comm_plan.commands.report import report
from comm_plan.commands.reproduce import reproduce
from comm_plan.commands.show import show
from comm_plan.commands.simulate import simulate
from comm_plan.commands.solve import solve
from comm_plan.commands.train import train
from comm_plan.commands.tune import tune
from comm_plan.errors import CommPlanError, InputError
from comm_plan.transports.ranks import RANK_0_FIRST_S, place_in_errors

app = typer.Typer(
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Plan and tune the communication of distributed deep learning.",
)


def _version(asked: bool) -> None:
    if asked:
        print(f"comm-plan {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks of errors.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print and exit."
        ),
    ] = False,
) -> None:
    if debug:
        os.environ["COMM_PLAN_DEBUG"] = "1"


VERBS = (
    profile,
    benchmark_network,
    solve,
    train,
    compare,
    tune,
    simulate,
    report,
    show,
    reproduce,
    demo,
)
"""In the order of ``--help``."""

for verb in VERBS:
    app.command()(verb)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Args:
        arguments: the words after the command's name; None: this process's own.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    _open_streams()
    # Torch prints what it also raises, with frames of C++, on every rank.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    try:
        code = app(words or ["--help"], "comm-plan", obj=words, standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except CommPlanError as error:
        _fail(error, error.exit_code)
    except Exception as error:
        refused = _misused(error) or _not_installed(error)
        _fail(refused or error, 2 if refused else 1)
    sys.exit(code or 0)


def _open_streams() -> None:
    """Let what is printed go nowhere where the shell closed stdout or stderr."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, nowhere)


def _misused(error: Exception) -> InputError | None:
    """Return what the parser of words says of them, None if it is no such error."""
    usage_error = typer.BadParameter.__bases__  # wherever this typer keeps click
    if not isinstance(error, usage_error):
        return None
    misuse = cast("typer.BadParameter", error)
    path = misuse.ctx.command_path if misuse.ctx else "comm-plan"
    said = misuse.format_message().rstrip(".").replace("Value error, ", "")
    said = said.replace("Input should be", "must be").partition(", unable to parse")[0]
    return InputError(f"{said}: {path} --help lists what there is")


def _not_installed(error: Exception) -> InputError | None:
    """Return what to install, None if that is not what is wrong."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return InputError(
            "this needs PyTorch, which is not installed: pip install 'comm-plan[torch]'"
        )
    return None


def _fail(error: BaseException, code: int) -> NoReturn:
    """Say what is wrong and leave; with bad input rank 0 goes first."""
    if place_in_errors().rank > 0 and isinstance(error, InputError):
        time.sleep(RANK_0_FIRST_S)
    screen.explain(error)
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread may still sit in a collective that will never end.
    os._exit(code)


if __name__ == "__main__":
    main()
