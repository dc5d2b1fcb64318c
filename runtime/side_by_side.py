"""Trains a workload by several plans at once, some epochs of each in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from comm_plan.errors import InputError
from comm_plan.plans import Plan, RunRecord
from comm_plan.runtime import randomness
from comm_plan.runtime.trainer import Options, Run, running
from comm_plan.transports.base import Transport
from comm_plan.workloads.base import Workload
from comm_plan.workloads.checks import copied

TURN_STEPS = 50
"""The first ten steps of a turn, of 10 ms each, were up to 20 % slower: it takes them
until caches, and the cores of the ranks' threads, are as in a training of its own."""


def train_side_by_side(
    workload: Workload, plans: Sequence[Plan], transport: Transport, options: Options
) -> tuple[RunRecord, ...]:
    """Train ``workload`` once by each of ``plans``, in turns.

    A turn is an epoch, or as many as have :data:`TURN_STEPS`. What slows the machine
    for a while slows all of them alike. Each has its own copy of the model, its own
    optimizer and random numbers, and does what ``train`` would do alone.

    Returns:
        The records, in the order of ``plans``.

    Raises:
        InputError: checkpoints are asked for, which are of one run, or the model cannot
            be copied.
        MismatchError: a plan does not fit the workload or the run.
        NonFiniteError: a gradient held inf or NaN and ``on_nonfinite`` is ``stop``.
        CollectiveError: a collective failed or timed out.
    """
    if options.checkpoint is not None:
        raise InputError("checkpoints are of one run: train the plans one by one")
    with ExitStack() as stack:
        instead = "train the plans one by one"
        copies = [
            replace(workload, model=copied(workload.model, instead)) for _ in plans
        ]
        runs = [
            stack.enter_context(running(copy, plan, transport, options))
            for copy, plan in zip(copies, plans, strict=True)
        ]
        begun = randomness.states()
        left = [(run, _with_own_random(run.epochs(), begun)) for run in runs]
        while left:
            left = [(run, epochs) for run, epochs in left if _take_turn(run, epochs)]
        return tuple(run.record() for run in runs)


def _take_turn(run: Run, epochs: Iterator[int]) -> bool:
    """Train for a turn; return whether epochs may be left."""
    enough = run.position.step + TURN_STEPS
    return any(run.position.step >= enough for _ in epochs)


def _with_own_random(epochs: Iterator[int], random: randomness.States) -> Iterator[int]:
    """Yield from ``epochs``, whose random numbers go on from ``random``."""
    while True:
        with randomness.kept():
            randomness.restore(random)
            epoch = next(epochs, None)
            random = randomness.states()
        if epoch is None:
            return
        yield epoch
