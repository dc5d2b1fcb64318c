"""What the words of options mean, as values."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from comm_plan.errors import InputError, unknown
from comm_plan.planner.solvers import SOLVERS
from comm_plan.plans.compression import KINDS, METHODS, Dense
from comm_plan.plans.document import refused_as
from comm_plan.plans.local import LocalSteps

if TYPE_CHECKING:
    from pathlib import Path

    from comm_plan.commands.options import Training
    from comm_plan.runtime.density_warmup import DensityWarmup
    from comm_plan.runtime.learning_rate import LearningRate


def value(choice: Enum | None) -> str | None:
    """Return the word of a choice."""
    return None if choice is None else choice.value


def bytes_per_s(gbits: float | None) -> float | None:
    """Return ``gbits`` of a second in bytes."""
    return None if gbits is None else gbits * 1e9 / 8


def names(text: str | None) -> tuple[str, ...] | None:
    """Return names that are separated by commas, each once."""
    if text is None:
        return None
    each = (name.strip() for name in text.split(","))
    return tuple(dict.fromkeys(filter(None, each)))


def names_of(files: Sequence[Path], prefix: str) -> list[str]:
    """Return what tables call ``files``: their names without ``prefix`` and suffix.

    Raises:
        InputError: two are called the same.
    """
    found = [file.stem.removeprefix(prefix) for file in files]
    if len(set(found)) < len(found):
        given = ", ".join(map(str, files))
        raise InputError(f"{given}: give each file a name of its own")
    return found


def pairs(texts: Sequence[str] | None) -> dict[str, str]:
    """Return ``NAME=VALUE`` texts as a mapping.

    Raises:
        InputError: a text is none, or two name the same.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        name, _, word = text.partition("=")
        if not (name and word):
            raise InputError(f"--set {text}: write NAME=VALUE")
        if name in found:
            raise InputError(f"--set {name} is given twice: leave one out")
        found[name] = word
    return found


def solvers(text: str) -> tuple[str, ...]:
    """Return which solvers ``--solvers`` means."""
    return tuple(SOLVERS) if text == "all" else names(text) or ()


def kinds_of(text: str) -> tuple[str, ...]:
    """Return which compressors ``--compressors`` means.

    A method is called as in ``solve --compressor``, or as its compressor is in plans.
    To send gradients as they are, which every plan may, is always one.

    Raises:
        InputError: there is no such method.
    """
    if text == "all":
        return tuple(KINDS)
    kinds: list[str] = [Dense().kind]
    for name in () if text == "none" else names(text) or ():
        if name not in METHODS and name not in KINDS:
            raise unknown("compressor", name, METHODS)
        kinds.append(METHODS[name][0].kind if name in METHODS else name)
    return tuple(dict.fromkeys(kinds))


def whole_numbers(option: str, text: str) -> list[int]:
    """Return whole numbers that are separated by commas, each once.

    Raises:
        InputError: one is none; ``option`` is named.
    """
    try:
        return list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise InputError(f"{option} {text!r}: give numbers, comma-separated") from None


def local_steps(
    every: int | None, learning_rate: float, momentum: float
) -> LocalSteps | None:
    """Return what ``--local-steps`` and the outer optimizer's options mean.

    Raises:
        InputError: a number is out of range.
    """
    if every is None:
        return None
    with refused_as("--local-steps, --outer-lr and --outer-momentum"):
        return LocalSteps(every=every, learning_rate=learning_rate, momentum=momentum)


def lengths_of_rounds(text: str | None) -> list[int]:
    """Return the numbers of local steps that ``tune --local-steps`` is to try.

    Raises:
        InputError: one is none, or out of range.
    """
    lengths = [] if text is None else whole_numbers("--local-steps", text)
    for every in lengths:
        with refused_as("--local-steps"):
            LocalSteps(every=every)
    return lengths


def micro_batches(second_moments: str | None) -> int | None:
    """Return what ``--second-moments`` means: 1, the whole batch, has exact ones.

    Raises:
        InputError: it is neither ``exact`` nor a number of micro-batches.
    """
    if second_moments is None:
        return None
    if second_moments == "exact":
        return 1
    name, _, number = second_moments.partition(":")
    if name == "micro-batches" and number.isdecimal() and int(number) > 1:
        return int(number)
    raise InputError(
        f"--second-moments {second_moments!r}: give exact, or micro-batches:N with N "
        "of 2 or more"
    )


def density_warmup(training: Training) -> DensityWarmup:
    """Return what ``--density-warmup`` means.

    Raises:
        InputError: it means nothing.
    """
    from comm_plan.runtime.density_warmup import parse

    return () if training.density_warmup is None else parse(training.density_warmup)


def learning_rate(training: Training) -> LearningRate:
    """Return the schedule that options of a training mean.

    Raises:
        InputError: they mean none.
    """
    from comm_plan.runtime.learning_rate import LearningRate

    return LearningRate.parse(training.lr_schedule, training.lr_warmup)
