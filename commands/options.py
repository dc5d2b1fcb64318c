"""The options that several verbs share: each listed once, with its help.

A verb takes those that belong together as one value, a :class:`Group`, which
:func:`grouped` turns into an option for each field.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    TypeAlias,
    TypeVar,
    cast,
    get_type_hints,
)

import typer

from comm_plan.collectives.registry import ALGORITHMS
from comm_plan.planner.evidence import Accuracy
from comm_plan.planner.solvers import LARGEST_RATIO, MERGED, SOLVERS
from comm_plan.plans.compression import METHODS
from comm_plan.plans.document import MAX_BATCH_SIZE, MAX_RANKS, MAX_SEED
from comm_plan.plans.export import EXPORTS
from comm_plan.transports.backends import BACKENDS
from comm_plan.workloads.optimizer import OPTIMIZERS
from comm_plan.workloads.registry import WORKLOADS

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
    Optimizer: TypeAlias = Enum
    SolverName: TypeAlias = Enum
else:
    Algorithm = _choices("Algorithm", ALGORITHMS)
    Backend = _choices("Backend", BACKENDS)
    Compressor = _choices("Compressor", METHODS)
    Device = _choices("Device", ("cpu", "cuda"))
    ExportTarget = _choices("ExportTarget", EXPORTS)
    Optimizer = _choices("Optimizer", OPTIMIZERS)
    SolverName = _choices("SolverName", SOLVERS)

OPTIMAL = SolverName(MERGED)

WORKLOAD = typer.Argument(
    metavar="WORKLOAD",
    help="path/file.py:function, package.module:function, replay:profile.json, or a "
    f"built-in one: {', '.join(WORKLOADS)}.",
)
WorkloadArgument = Annotated[str, WORKLOAD]
ProfileArgument = Annotated[
    Path, typer.Argument(metavar="PROFILE", help="What comm-plan profile wrote.")
]
NetworkArgument = Annotated[
    Path, typer.Argument(metavar="NETWORK", help="What benchmark-network wrote.")
]


def _two_files(given: tuple[Path, Path] | None) -> tuple[Path, Path] | None:
    """Refuse an option that was taken for a file, as what follows is missing."""
    for path in given or ():
        if str(path).startswith("-"):
            raise typer.BadParameter(
                f"two files are wanted, PROFILE NETWORK; {path} is an option"
            )
    return given


def from_documents(flag: str, what: str) -> Any:
    """Return an option for the two documents that a plan was solved from.

    Args:
        flag: what it is called.
        what: it does, for the help.
    """
    return typer.Option(flag, metavar="PROFILE NETWORK", callback=_two_files, help=what)


Json = Annotated[bool, typer.Option("--json", help="Print the result to stdout.")]
WorldSize = Annotated[
    int | None,
    typer.Option(min=1, max=MAX_RANKS, help="Ranks to plan for. Default: as measured."),
]
LinkSpeed = Annotated[
    float | None,
    typer.Option(
        "--link-gbits",
        min=1e-6,
        max=1e6,
        help="Speed of a rank's link, which changes the lower bound only. Default: the "
        "best that was measured.",
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
CompressorOption = Annotated[
    Compressor | None,
    typer.Option(
        metavar="METHOD", help=f"Force one upon all buckets: {', '.join(METHODS)}."
    ),
]
CompressorOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Of the forced compressor: density=..."
    ),
]
FindUnusedParameters = Annotated[
    bool,
    typer.Option("--find-unused-parameters", help="Parameters may get no gradient."),
]
LocalStepsOption = Annotated[
    int | None,
    typer.Option(
        "--local-steps",
        min=2,
        max=10_000,
        metavar="N",
        help="Ranks train alone for N steps, then average how far they came.",
    ),
]
OuterRate = Annotated[
    float,
    typer.Option(
        "--outer-lr", help="Local steps: how far to go towards the ranks' mean."
    ),
]
OuterMomentum = Annotated[
    float,
    typer.Option("--outer-momentum", help="Local steps: momentum of that, Nesterov's."),
]
Tolerance = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="How much slower than the fastest, as a share (0.01 is 1 %), a plan may "
        "be to send or compress less.",
    ),
]
MinGain = Annotated[
    float,
    typer.Option(
        min=0,
        max=0.99,
        help="How much less time, as a share, auto wants to compress for.",
    ),
]
MaxRatio = Annotated[
    float,
    typer.Option(
        min=1, max=LARGEST_RATIO, help="Upper bound on the ratios that are chosen."
    ),
]


AccuracyClass = Annotated[
    Accuracy | None,
    typer.Option(
        help="none: stay dense; noise: only what was measured to be within noise of "
        "dense (the default); loss: anything (the default of tune --objective loss)."
    ),
]


class Group:
    """Base of the groups; ``panel`` is where ``--help`` lists their options."""

    panel: ClassVar[str]


@dataclass(frozen=True)
class Ranks(Group):
    """Which ranks run a verb, and how they talk to each other."""

    panel = "Ranks"

    backend: Annotated[
        Backend | None,
        typer.Option(
            "--backend", help="Default: a plan's own, else nccl with CUDA, else gloo."
        ),
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
            help="Let the ranks of one host have such a link: 100mbit, 1gbit:2ms.",
        ),
    ] = None


@dataclass(frozen=True)
class WorkloadOptions(Group):
    """How a workload differs from what its name alone means."""

    panel = "Workload"

    batch_size: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_BATCH_SIZE, help="Samples in a rank's batch."),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of the data set, where the workload reads one."),
    ] = None
    augment: Annotated[
        bool | None,
        typer.Option(
            "--augment/--no-augment",
            help="Shift and mirror images at random. Default: the workload's.",
        ),
    ] = None


@dataclass(frozen=True)
class OptimizerChanges(Group):
    """How its optimizer differs from the workload's own."""

    panel = "Optimizer"

    optimizer: Annotated[
        Optimizer | None, typer.Option(help="Default: the workload's, as all below.")
    ] = None
    lr: Annotated[float | None, typer.Option("--lr", min=0, help="Learning rate.")] = (
        None
    )
    momentum: Annotated[
        float | None, typer.Option("--momentum", min=0, max=1, help="Of SGD.")
    ] = None
    nesterov: Annotated[
        bool | None, typer.Option("--nesterov/--no-nesterov", help="Of SGD.")
    ] = None
    weight_decay: Annotated[
        float | None, typer.Option("--weight-decay", min=0, help="As of PyTorch.")
    ] = None
    clip_norm: Annotated[
        float | None,
        typer.Option("--clip-norm", min=0, help="Largest norm of the mean gradient."),
    ] = None


@dataclass(frozen=True)
class Training(Group):
    """How long to train, at which rates, and from which random numbers."""

    panel = "Training"

    epochs: Annotated[
        int | None, typer.Option(min=1, help="Default: the workload's.")
    ] = None
    steps: Annotated[int | None, typer.Option(min=0, help="Stop after so many.")] = None
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_SEED, help="Of parameters, data order and compressors."
        ),
    ] = 0
    lr_schedule: Annotated[
        str,
        typer.Option(
            metavar="DECAY",
            help="constant, step:80,120[:0.1], every:25[:0.5] (epochs[:factor]), "
            "cosine, or poly[:0.5].",
        ),
    ] = "constant"
    lr_warmup: Annotated[
        float,
        typer.Option(min=0, help="Epochs in which the learning rate rises from 0."),
    ] = 0.0
    density_warmup: Annotated[
        str | None,
        typer.Option(
            help="Densities of the first epochs: 0.25,0.1,...; 'paper'; or how many, "
            "down to the plan's."
        ),
    ] = None


def grouped(verb: Verb) -> Verb:
    """Give a verb an option for each field of its parameters that are groups."""
    # Not get_type_hints: until Python 3.11 it hides what has None for a default.
    own_parameters = inspect.signature(verb, eval_str=True).parameters
    groups = {
        name: parameter.annotation
        for name, parameter in own_parameters.items()
        if isinstance(parameter.annotation, type)
        and issubclass(parameter.annotation, Group)
    }

    @wraps(verb)
    def command(**values: Any) -> None:
        for name, group in groups.items():
            own = {option.name: values.pop(option.name) for option in _options(group)}
            values[name] = group(**own)
        verb(**values)

    parameters = [
        option
        for name, parameter in own_parameters.items()
        for option in (_options(groups[name]) if name in groups else [parameter])
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in parameters}
    return cast(Verb, command)


def fields_of(*groups: type[Group]) -> tuple[str, ...]:
    """Return the names of the parameters that make up ``groups``."""
    return tuple(
        name for group in groups for name in inspect.signature(group).parameters
    )


def refuse_given(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Refuse those of these parameters that were given, as they would decide nothing.

    Raises:
        typer.BadParameter: one was; ``why`` says what it is for.
    """
    for parameter in context.command.params:
        if parameter.name in names:
            source = context.get_parameter_source(parameter.name)
            if source is not None and source.name == "COMMANDLINE":
                raise typer.BadParameter(why, param_hint=parameter.opts[0])


def _options(group: type[Group]) -> list[inspect.Parameter]:
    """Return the fields of ``group`` as keyword parameters of a function."""
    hints = get_type_hints(group, include_extras=True)
    for name in inspect.signature(group).parameters:
        (option,) = hints[name].__metadata__
        option.rich_help_panel = group.panel
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=parameter.default,
            annotation=hints[name],
        )
        for name, parameter in inspect.signature(group).parameters.items()
    ]
