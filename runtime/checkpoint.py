"""Checkpoints: what a run needs to go on exactly where it was.

A checkpoint is a folder ``step-00000123`` with one file per rank, since residuals and
random states differ from rank to rank::

    rank-00000.pt   model, optimizer, progress, and rank 0's own state
    rank-00001.pt   rank 1's own state
    ...

It is written under another name and renamed once every rank has written its part, so a
run that is killed while writing leaves the checkpoint before. Without a file system
that all hosts share, every host holds its own ranks' files; the common part comes from
rank 0.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from comm_plan.collectives.transport import Transport
from comm_plan.errors import InputError, OutputError
from comm_plan.plans.document import make_folder
from comm_plan.runtime.engine import Engine

KEEP = 2  # newest checkpoints; one is not enough if the disk fills while writing


@dataclass(frozen=True)
class Progress:
    """How far a run has come: finished steps, and the place in the data."""

    step: int = 0
    epoch: int = 0
    batch: int = 0


class Checkpoints:
    """The checkpoints of one run in one folder.

    Args:
        folder: where; it is made if it is not there.
        transport: the ranks; every method is a collective call.

    Raises:
        OutputError: the folder cannot be made.
    """

    def __init__(self, folder: Path, transport: Transport) -> None:
        self._folder = folder
        self._transport = transport
        make_folder(folder)

    def save(
        self,
        progress: Progress,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        engine: Engine,
    ) -> None:
        """Write a checkpoint and remove the oldest.

        Raises:
            OutputError: it cannot be written.
        """
        content: dict[str, Any] = {
            "world_size": self._transport.world_size,
            "engine": engine.state_dict(),
            "random": _random_states(),
        }
        if self._transport.rank == 0:
            content["progress"] = vars(progress)
            content["model"] = model.state_dict()
            content["optimizer"] = optimizer.state_dict()
        target = self._folder / f"step-{progress.step:08d}"
        partial = target.with_suffix(".partial")
        try:
            partial.mkdir(exist_ok=True)
            torch.save(content, partial / self._rank_file)
        except (OSError, RuntimeError) as error:
            raise OutputError(f"{partial}: cannot be written: {error}") from None
        self._transport.barrier()
        # Ranks of one host race for the rename: the first one does it for all.
        with contextlib.suppress(FileNotFoundError, OSError):
            partial.rename(target)
        self._transport.barrier()
        for old in self._all()[:-KEEP]:
            shutil.rmtree(old, ignore_errors=True)

    def load(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, engine: Engine
    ) -> Progress:
        """Restore the newest checkpoint.

        Raises:
            InputError: there is none, or it is of another world size.
        """
        found = self._all()
        newest = self._transport.broadcast_object(found[-1].name if found else None)
        if newest is None:
            raise InputError(f"{self._folder}: no checkpoint to resume from")
        path = self._folder / newest / self._rank_file
        try:
            content = torch.load(path, weights_only=False)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        if content["world_size"] != self._transport.world_size:
            raise InputError(
                f"{path}: written by {content['world_size']} ranks, this run has "
                f"{self._transport.world_size}: resume with as many"
            )
        names = ("progress", "model", "optimizer")
        common = {name: content.get(name) for name in names}
        common = self._transport.broadcast_object(common)
        model.load_state_dict(common["model"])
        optimizer.load_state_dict(common["optimizer"])
        engine.load_state_dict(content["engine"])
        _restore_random_states(content["random"])
        return Progress(**common["progress"])

    @property
    def _rank_file(self) -> str:
        return f"rank-{self._transport.rank:05d}.pt"

    def _all(self) -> list[Path]:
        return sorted(
            path for path in self._folder.glob("step-*") if path.suffix != ".partial"
        )


def _random_states() -> dict[str, Any]:
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
