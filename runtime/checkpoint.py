"""Checkpoints: what a run needs to go on exactly where it was.

A checkpoint is a folder ``step-00000123`` with one file per rank, since residuals and
random states differ from rank to rank::

    rank-00000.pt   model, optimizer, progress, and rank 0's own state
    rank-00001.pt   rank 1's own state
    ...

It is written under another name and renamed once every rank has written its part, so a
run that is killed while writing leaves the checkpoint before. Without a file system
that all hosts share, every host holds its own ranks' files; the common part comes from
rank 0, and a run resumes from the newest checkpoint that all hosts have. Another number
of ranks goes on from it too: what was not sent yet is shared out among them.
"""

from __future__ import annotations

import logging
import pickle
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from comm_plan.errors import InputError, OutputError
from comm_plan.plans.document import make_folder
from comm_plan.runtime import randomness
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.state import EngineState
from comm_plan.transports.base import Transport

COMMON = ("progress", "model", "optimizer")
"""What the file of rank 0 holds for all."""

KEEP = 2  # newest checkpoints; one is not enough if the disk fills while writing

logger = logging.getLogger("comm_plan")


@dataclass(frozen=True)
class Position:
    """How far a run has come: finished steps, and the place in the data."""

    step: int = 0
    epoch: int = 0
    batch: int = 0

    def among(self, before: int, now: int) -> Position:
        """Return the same place in the data for another number of ranks."""
        return replace(self, batch=self.batch * before // now)


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
            torch.save(content, partial / _file(self._transport.rank))
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

    def are_there(self) -> bool:
        """Return whether there is one to go on from."""
        return bool(self._common())

    def load(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        engine: Engine,
        incomplete: bool = False,
    ) -> tuple[Position, randomness.States]:
        """Restore the newest checkpoint; unfinished and newer ones are removed.

        If another number of ranks wrote it, what they remembered is shared out among
        these, and random numbers go on from where they are.

        Args:
            model: the model.
            optimizer: its optimizer.
            engine: the engine.
            incomplete: files of ranks other than 0 may be lost, and what these ranks
                remembered with them.

        Returns:
            How far the run had come, and the ``epoch_random`` that was saved.

        Raises:
            InputError: there is none, or it cannot be read, or is incomplete.
        """
        ranks, folder = self._transport, self._newest()
        held = ranks.gather_objects({path.name for path in folder.glob("rank-*.pt")})
        everything = set.union(*held)
        holder = next((r for r in range(len(held)) if _file(0) in held[r]), 0)
        as_before = len(everything) == ranks.world_size and all(
            _file(rank) in here for rank, here in enumerate(held)
        )
        own = _file(ranks.rank)
        if as_before or not everything:
            mine = [own]
        else:
            mine = sorted(held[ranks.rank].difference(*held[: ranks.rank]))
        contents = {file: self._read(folder / file) for file in mine}
        common = contents.get(_file(0)) if ranks.rank == holder else None
        common = ranks.broadcast_object(
            common and {name: common[name] for name in COMMON}, holder
        )
        if common is None:
            raise InputError(f"{folder / _file(0)}: is not there, and has the model")
        model.load_state_dict(common["model"])
        optimizer.load_state_dict(common["optimizer"])
        position = Position(**common["progress"])
        self._newest_step = position.step
        if as_before:
            engine.load_state_dict(contents[own]["engine"])
            randomness.restore(contents[own]["random"])
            return position, contents[own]["epoch_random"]
        written_by = self._share_out(folder, contents, engine, incomplete)
        return position.among(written_by, ranks.world_size), randomness.states()

    def _share_out(
        self,
        folder: Path,
        contents: dict[str, dict[str, Any]],
        engine: Engine,
        incomplete: bool,
    ) -> int:
        """Let the engines take over what other ranks remembered.

        Args:
            folder: the checkpoint.
            contents: of the files that this rank has read; every file one rank's.
            engine: this rank's.
            incomplete: files may be lost.

        Returns:
            How many ranks wrote the checkpoint.

        Raises:
            InputError: files are lost.
        """
        states = [content["engine"] for content in contents.values()]
        every_rank = self._transport.gather_objects(states)
        found: list[EngineState] = [state for states in every_rank for state in states]
        written_by = found[0]["world_size"]
        if len(found) < written_by:
            lost = f"{folder}: files of {written_by - len(found)} of {written_by} ranks"
            if not incomplete:
                raise InputError(f"{lost} are not on these hosts")
            logger.warning("%s are lost, and what they had not sent", lost)
        parts = [part for state in found for part in state["ranks"].values()]
        engine.load_state_dict(
            {
                **found[0],
                "world_size": len(parts),
                "ranks": {str(rank): part for rank, part in enumerate(parts)},
            }
        )
        return written_by

    def _newest(self) -> Path:
        """Return the newest checkpoint that all ranks have, and remove what is newer.

        That is what a run left that was killed while it wrote: unfinished everywhere,
        or finished on some hosts only.
        """
        common = self._common()
        if not common:
            raise InputError(f"{self._folder}: no checkpoint to resume from")
        newest = max(common)
        for path in self._folder.glob("step-*"):
            if path.name > newest:
                shutil.rmtree(path, ignore_errors=True)
        return self._folder / newest

    def _common(self) -> set[str]:
        """Return the names of those that all hosts have."""
        names_here = {path.name for path in self._all()}
        common: set[str] = set.intersection(*self._transport.gather_objects(names_here))
        return common

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            content: dict[str, Any] = torch.load(path, weights_only=False)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"{path}: cannot be read: {reason}") from None
        return content

    def _all(self) -> list[Path]:
        return sorted(
            path for path in self._folder.glob("step-*") if path.suffix != ".partial"
        )


def _file(rank: int) -> str:
    return f"rank-{rank:05d}.pt"
