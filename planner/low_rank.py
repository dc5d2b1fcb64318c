"""A rank for each layer: the least error at the bytes of one rank for all.

Some layers' gradients are nearly of rank 1, others need 16 to say as much. The profile
knows what the best approximation of each rank leaves out of each gradient. So ranks are
chosen that leave out the least, in squared norm, of those that together send no more
than one rank for all would.

The ranks of a tensor lie on a curve of errors over bytes. All start at their fewest
bytes; then steps along the lower convex hulls of these curves are taken, the one that
gains most a byte first, as long as they fit; then each tensor is given the least error
that still fits. Nothing that sends no more leaves out less by as much as a step.

Markov, Alimohammadi, Frantar, Alistarh, "L-GreCo: Layerwise-Adaptive Gradient
Compression for Efficient Data-Parallel Deep Learning", MLSys 2024.

Differences from the paper: the bytes are given, not the error, for equal errors are not
equal losses; gradients of the profile only, not looked at again while training goes on;
squared norms, which add up over tensors; hulls instead of dynamic programming over
discretised errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise

from comm_plan.errors import InputError
from comm_plan.planner.evidence import SLACK
from comm_plan.plans.compression import FLOAT32_NBYTES, PowerSgd, matrix_of
from comm_plan.plans.compression.powersgd import RANKS, numel_in_two_steps
from comm_plan.plans.profile import TensorTiming


@dataclass(frozen=True)
class Choice:
    """One rank of a tensor, what it sends, and the squared norm that it leaves out."""

    rank: int
    nbytes: float
    error: float


@dataclass(frozen=True)
class _Step:
    """From one choice of a tensor to a better one."""

    tensor: int
    before: Choice
    after: Choice

    @property
    def nbytes(self) -> float:
        """How many bytes more are sent."""
        return self.after.nbytes - self.before.nbytes

    @property
    def gain(self) -> float:
        """How much less is left out for each of them."""
        return (self.before.error - self.after.error) / self.nbytes


def is_known(rank: int, tensors: Iterable[TensorTiming]) -> bool:
    """Return whether the profile says what ``rank`` leaves out of a matrix.

    Of some it may not: of those that no batch used, or of a dtype that is sent whole.
    """
    matrices = [tensor for tensor in tensors if matrix_of(tensor.shape, rank)]
    return not matrices or any(
        rank in {each.rank for each in tensor.low_rank or ()} for tensor in matrices
    )


def allocated(
    rank: int, tensors: Sequence[TensorTiming], allowed: Sequence[bool] | None = None
) -> PowerSgd:
    """Return ranks that send no more than ``rank`` for all; it, if none are better.

    Args:
        rank: whose errors are known.
        tensors: of the model.
        allowed: which of them go this way; None: all. The others have ``rank``, as
            have those of which the profile does not say what it leaves out.

    Raises:
        InputError: the profile does not say what ``rank`` leaves out.
    """
    sent = [True] * len(tensors) if allowed is None else allowed
    if not is_known(rank, compress(tensors, sent)):
        raise InputError(
            f"bytes_of {rank}: the profile does not say what rank {rank} leaves out: "
            f"give one of {', '.join(map(str, RANKS))}, and profile with powersgd "
            "among --compressors"
        )
    every = [
        _choices(tensor, rank) if is_sent else [Choice(rank, 0.0, 0.0)]
        for tensor, is_sent in zip(tensors, sent, strict=True)
    ]
    uniform = [_of_rank(choices, rank) for choices in every]
    chosen = least_error(every, nbytes(uniform))
    if (error(chosen), nbytes(chosen)) >= (error(uniform), nbytes(uniform)):
        return PowerSgd(rank=rank)
    return PowerSgd(rank=tuple(choice.rank for choice in chosen), bytes_of=rank)


def least_error(every: Sequence[Sequence[Choice]], most_nbytes: float) -> list[Choice]:
    """Return a choice for each tensor which together send ``most_nbytes`` at most.

    Args:
        every: the choices of each tensor.
        most_nbytes: at least the sum of the fewest.
    """
    hulls = [_hull(choices) for choices in every]
    chosen = [hull[0] for hull in hulls]
    steps = [
        _Step(tensor, before, after)
        for tensor, hull in enumerate(hulls)
        for before, after in pairwise(hull)
    ]
    steps.sort(key=lambda step: -step.gain)
    left = most_nbytes * SLACK - nbytes(chosen)
    for step in steps:
        if step.nbytes > left:
            break
        chosen[step.tensor] = step.after
        left -= step.nbytes
    for tensor in sorted(range(len(every)), key=lambda each: -chosen[each].error):
        room = left + chosen[tensor].nbytes
        fitting = (choice for choice in every[tensor] if choice.nbytes <= room)
        chosen[tensor] = min(fitting, key=lambda each: (each.error, each.nbytes))
        left = room - chosen[tensor].nbytes
    return chosen


def nbytes(choices: Iterable[Choice]) -> float:
    """Return what all ``choices`` send together."""
    return sum(choice.nbytes for choice in choices)


def error(choices: Iterable[Choice]) -> float:
    """Return what all ``choices`` leave out together."""
    return sum(choice.error for choice in choices)


def _choices(tensor: TensorTiming, rank: int) -> list[Choice]:
    """Return the ranks whose errors are known; of no matrix, ``rank``."""
    known = {each.rank: each.squared_error for each in tensor.low_rank or ()}
    if rank not in known:
        return [Choice(rank, 0.0, 0.0)]
    return [
        Choice(
            other,
            FLOAT32_NBYTES / 2 * numel_in_two_steps(tensor.shape, other),
            error if matrix_of(tensor.shape, other) else 0.0,
        )
        for other, error in known.items()
    ]


def _of_rank(choices: Sequence[Choice], rank: int) -> Choice:
    return next(choice for choice in choices if choice.rank == rank)


def _hull(choices: Sequence[Choice]) -> list[Choice]:
    """Return the lower convex hull of errors over bytes, the fewest bytes first."""
    hull: list[Choice] = []
    for choice in sorted(choices, key=lambda each: (each.nbytes, each.error)):
        if hull and choice.error >= hull[-1].error:
            continue
        while len(hull) > 1 and _is_above(hull[-1], hull[-2], choice):
            hull.pop()
        hull.append(choice)
    return hull


def _is_above(middle: Choice, before: Choice, after: Choice) -> bool:
    """Return whether ``middle`` is above the line between the two others."""
    first = (before.error - middle.error) * (after.nbytes - before.nbytes)
    return first < (before.error - after.error) * (middle.nbytes - before.nbytes)
