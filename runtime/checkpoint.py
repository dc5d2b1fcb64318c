"""Checkpoints: what a run needs to go on exactly where it was.

A checkpoint is a folder ``step-00000123`` with one file per rank, since residuals and
random states differ from rank to rank::

    rank-00000.pt   model, optimizer, progress, and rank 0's own state
    rank-00001.pt   rank 1's own state
    ...

It is written under another name and renamed once every rank has written its part, so a
run that is killed while writing leaves the checkpoint before. Without a file system
that all hosts share, every host holds its own ranks' files; the common part comes from
rank 0, and a run resumes from the newest checkpoint that all hosts have.
"""

from __future__ import annotations

import pickle
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from comm_plan.errors import InputError, OutputError
from comm_plan.plans.document import make_folder
from comm_plan.runtime import randomness
from comm_plan.runtime.engine import Engine
from comm_plan.transports.base import Transport

KEEP = 2  # newest checkpoints; one is not enough if the disk fills while writing


@dataclass(frozen=True)
class Position:
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
        self._newest_step: int | None = None
        make_folder(folder)

    def refuse_used(self) -> None:
        """Check that no other run's checkpoints are here, to be mixed up with.

        Raises:
            InputError: there are some.
        """
        if self._all():
            raise InputError(
                f"{self._folder}: holds checkpoints of another run: --resume it, or "
                "give another folder"
            )

    def save(
        self,
        position: Position,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        engine: Engine,
        epoch_random: randomness.States,
    ) -> None:
        """Write a checkpoint, unless this step has one, and remove the oldest.

        Args:
            position: how far the run has come.
            model: the model.
            optimizer: its optimizer.
            engine: the engine.
            epoch_random: the global random numbers as they were when the epoch began.

        Raises:
            OutputError: it cannot be written.
        """
        if position.step == self._newest_step:
            return
        content: dict[str, Any] = {
            "world_size": self._transport.world_size,
            "engine": engine.state_dict(),
            "random": randomness.states(),
            "epoch_random": epoch_random,
        }
        if self._transport.rank == 0:
            content["progress"] = vars(position)
            content["model"] = model.state_dict()
            content["optimizer"] = optimizer.state_dict()
        target = self._folder / f"step-{position.step:08d}"
        partial = target.with_suffix(".partial")
        try:
            partial.mkdir(exist_ok=True)
            torch.save(content, partial / self._rank_file)
        except (OSError, RuntimeError) as error:
            raise OutputError(f"{partial}: cannot be written: {error}") from None
        self._transport.barrier()
        # Ranks of one host race for the rename: the first one does it for all.
        with suppress(FileNotFoundError):
            partial.rename(target)
        self._transport.barrier()
        self._newest_step = position.step
        for old in self._all()[:-KEEP]:
            shutil.rmtree(old, ignore_errors=True)

    def load(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, engine: Engine
    ) -> tuple[Position, randomness.States]:
        """Restore the newest checkpoint; unfinished and newer ones are removed.

        Returns:
            How far the run had come, and the ``epoch_random`` that was saved.

        Raises:
            InputError: there is none, it cannot be read, or it is of another world
                size.
        """
        content = self._read(self._newest() / self._rank_file)
        names = ("progress", "model", "optimizer")
        common = {name: content.get(name) for name in names}
        common = self._transport.broadcast_object(common)
        model.load_state_dict(common["model"])
        optimizer.load_state_dict(common["optimizer"])
        engine.load_state_dict(content["engine"])
        randomness.restore(content["random"])
        position = Position(**common["progress"])
        self._newest_step = position.step
        return position, content["epoch_random"]

    def _newest(self) -> Path:
        """Return the newest checkpoint that all ranks have, and remove what is newer.

        That is what a run left that was killed while it wrote: unfinished everywhere,
        or finished on some hosts only.
        """
        names_here = {path.name for path in self._all()}
        common: set[str] = set.intersection(*self._transport.gather_objects(names_here))
        if not common:
            raise InputError(f"{self._folder}: no checkpoint to resume from")
        newest = max(common)
        for path in self._folder.glob("step-*"):
            if path.name > newest:
                shutil.rmtree(path, ignore_errors=True)
        return self._folder / newest

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            content: dict[str, Any] = torch.load(path, weights_only=False)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"{path}: cannot be read: {reason}") from None
        if content["world_size"] != self._transport.world_size:
            raise InputError(
                f"{path}: written by {content['world_size']} ranks, this run has "
                f"{self._transport.world_size}: resume with as many"
            )
        return content

    @property
    def _rank_file(self) -> str:
        return f"rank-{self._transport.rank:05d}.pt"

    def _all(self) -> list[Path]:
        return sorted(
            path for path in self._folder.glob("step-*") if path.suffix != ".partial"
        )
