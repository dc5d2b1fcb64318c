"""The options that several verbs share: each listed once, with its help.

A verb takes those that belong together as one value: a parameter of a frozen dataclass
below, which :func:`grouped` turns into an option for each field.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeAlias,
    TypeVar,
    cast,
    get_type_hints,
)

import typer

from comm_plan.collectives.registry import ALGORITHMS
from comm_plan.planner.solvers import SOLVERS
from comm_plan.plans.compression import METHODS
from comm_plan.plans.export import EXPORTS
from comm_plan.transports.backends import BACKENDS

Verb = TypeVar("Verb", bound=Callable[..., None])

_make_enum: Callable[..., object] = Enum


def _choices(name: str, values: Iterable[str]) -> type[Enum]:
    """Return what ``--help`` lists and everything else is refused for."""
    return cast("type[Enum]", _make_enum(name, ((v, v) for v in values), type=str))


if TYPE_CHECKING:
    Algorithm: TypeAlias = Enum
    Backend: TypeAlias = Enum
    Compressor: TypeAlias = Enum
    Device: TypeAlias = Enum
    ExportTarget: TypeAlias = Enum
    SolverName: TypeAlias = Enum
else:
    Algorithm = _choices("Algorithm", ALGORITHMS)
    Backend = _choices("Backend", BACKENDS)
    Compressor = _choices("Compressor", METHODS)
    Device = _choices("Device", ("cpu", "cuda"))
    ExportTarget = _choices("ExportTarget", EXPORTS)
    SolverName = _choices("SolverName", SOLVERS)

OPTIMAL = SolverName("optimal")

WorkloadArgument = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="A built-in name, package.module:function, path/file.py:function, or "
        "replay:profile.json.",
    ),
]
ProfileArgument = Annotated[Path, typer.Argument(metavar="PROFILE")]
NetworkArgument = Annotated[Path, typer.Argument(metavar="NETWORK")]
Json = Annotated[bool, typer.Option("--json", help="Print the result to stdout.")]
WorldSize = Annotated[
    int | None,
    typer.Option(min=1, help="Ranks to plan for. Default: as measured."),
]
LinkSpeed = Annotated[
    float | None,
    typer.Option(
        "--link-gbits", min=1e-6, help="A rank's link, for the lower bound, Gbit/s."
    ),
]
DenseLayers = Annotated[
    str | None,
    typer.Option(help="Never compress these: comma-separated patterns of names."),
]
AlgorithmOption = Annotated[
    Algorithm | None,
    typer.Option(
        help="Closed form of collectives, to carry costs to other numbers of ranks."
    ),
]
Tolerance = Annotated[
    float,
    typer.Option(
        min=0,
        help="How much slower than the fastest a plan may be to send or compress less.",
    ),
]
MaxRatio = Annotated[
    float, typer.Option(min=1, help="Upper bound on numel / k for sparse methods.")
]


@dataclass(frozen=True)
class Ranks:
    """Which ranks run a verb, and how they talk to each other."""

    backend: Annotated[
        Backend | None,
        typer.Option("--backend", help="Default: nccl with CUDA, else gloo."),
    ] = None
    device: Annotated[
        Device | None,
        typer.Option("--device", help="Default: cuda with nccl, else cpu."),
    ] = None
    local_ranks: Annotated[
        int | None,
        typer.Option("--local-ranks", min=1, help="Start so many ranks on this host."),
    ] = None
    emulate_link: Annotated[
        str | None,
        typer.Option(
            "--emulate-link",
            metavar="RATE[:LATENCY]",
            help="Hold collectives of one host's ranks back to a link such as 100mbit.",
        ),
    ] = None


@dataclass(frozen=True)
class WorkloadOptions:
    """How a workload differs from what its name alone means."""

    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples in a rank's batch.")
    ] = None


@dataclass(frozen=True)
class Training:
    """How long to train, and from which random numbers."""

    epochs: Annotated[
        int | None, typer.Option(min=1, help="Default: the workload's.")
    ] = None
    steps: Annotated[int | None, typer.Option(min=0, help="Stop after so many.")] = None
    seed: Annotated[
        int, typer.Option(help="Of parameters, data order and compressors.")
    ] = 0


def grouped(verb: Verb) -> Verb:
    """Give a verb an option for each field of its parameters that are dataclasses."""
    hints = get_type_hints(verb, include_extras=True)
    groups = {
        name: hint
        for name, hint in hints.items()
        if isinstance(hint, type) and is_dataclass(hint)
    }

    @wraps(verb)
    def command(**values: Any) -> None:
        for name, group in groups.items():
            own = {field.name: values.pop(field.name) for field in fields(group)}
            values[name] = group(**own)
        verb(**values)

    parameters = [
        option
        for name, parameter in inspect.signature(verb).parameters.items()
        for option in (
            _options(groups[name])
            if name in groups
            else [parameter.replace(annotation=hints[name])]
        )
    ]
    by_keyword = [
        option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in parameters
    ]
    command.__signature__ = inspect.Signature(by_keyword)  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in by_keyword}
    return cast(Verb, command)


def _options(group: type) -> list[inspect.Parameter]:
    """Return the fields of ``group`` as parameters of a function."""
    hints = get_type_hints(group, include_extras=True)
    return [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(group).parameters.items()
    ]
