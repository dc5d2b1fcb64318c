"""Checkpoints: what a run needs to go on exactly where it was.

A checkpoint is a folder ``step-00000123`` with one file per rank, since residuals and
random states differ from rank to rank::

    rank-00000.pt   model, optimizer, progress, and rank 0's own state
    rank-00001.pt   rank 1's own state
    ...

A round of local steps ends before it is saved; then each rank's optimizer is its own.

It is written under another name and renamed once every rank has written its part, so a
run that is killed while writing leaves the checkpoint before. If a part cannot be
written, on a full disk say, all ranks give this checkpoint up, with a warning, and the
run goes on. A file that is torn or damaged is known by its checksum
(:mod:`~comm_plan.runtime.checkpoint_file`), and the checkpoint before it is taken.

Without a file system that all hosts share, every host holds its own ranks' files; the
common part comes from rank 0, and a run resumes from the newest checkpoint that all
hosts have. Another number of ranks goes on from it too: what was not sent yet is shared
out among them.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from comm_plan.errors import InputError, OutputError, one_line
from comm_plan.plans.files import make_folder
from comm_plan.runtime import checkpoint_file, randomness
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.state import EngineState, on_cpu, one_by_one
from comm_plan.transports.base import Transport

COMMON = ("settings", "asked", "progress", "model", "optimizer", "updated")
"""What the file of rank 0 holds for all."""

KEEP = 2  # newest checkpoints; one would not do if it is damaged

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
        folder: where; a run that begins makes it if it is not there.
        transport: the ranks; every method is a collective call.
        settings: of the run, by name; only a run with the same goes on from them.
        optimizer: of the run, as it is asked for.

    Raises:
        OutputError: the folder cannot be written to.
    """

    def __init__(
        self,
        folder: Path,
        transport: Transport,
        settings: Mapping[str, object],
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._folder = folder
        self._transport = transport
        self._settings = dict(settings)
        self._asked = [
            {name: value for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        self._newest_step: int | None = None
        if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
            raise OutputError(f"{folder}: cannot be written to: give another folder")

    def refuse_used(self) -> None:
        """Check that no other run's checkpoints are here; remove unfinished ones.

        Raises:
            InputError: there are some.
            OutputError: the folder cannot be made.
        """
        make_folder(self._folder)
        if self._all():
            raise InputError(
                f"{self._folder}: holds checkpoints of another run: --resume it, or "
                "give another folder"
            )
        for unfinished in self._folder.glob("step-*.partial"):
            shutil.rmtree(unfinished, ignore_errors=True)

    def save(
        self,
        position: Position,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        engine: Engine,
        epoch_random: randomness.States,
    ) -> None:
        """Write a checkpoint, unless this step has one, and remove the oldest.

        If a rank cannot write its part, there is a warning and no checkpoint.

        Args:
            position: how far the run has come.
            model: the model.
            optimizer: its optimizer.
            engine: the engine.
            epoch_random: the global random numbers as they were when the epoch began.

        Raises:
            InputError: the state holds objects that could not be read again.
        """
        if position.step == self._newest_step:
            return
        engine.synchronise()
        content: dict[str, Any] = {
            "engine": engine.state_dict(),
            "random": randomness.states(),
            "epoch_random": epoch_random,
        }
        if engine.plan.local_steps is not None:
            content["own_optimizer"] = optimizer.state_dict()
        if self._transport.rank == 0:
            content["settings"] = self._settings
            content["asked"] = self._asked
            content["progress"] = vars(position)
            content["model"] = model.state_dict()
            content["optimizer"] = optimizer.state_dict()
            content["updated"] = _updated(model, optimizer)
        target = self._folder / f"step-{position.step:08d}"
        partial = target.with_suffix(".partial")
        own = partial / _file(self._transport.rank)
        problem = self._first(checkpoint_file.write(own, content))
        if problem is not None:
            shutil.rmtree(partial, ignore_errors=True)
            if self._transport.rank == 0:
                logger.warning("no checkpoint at step %d: %s", position.step, problem)
            self._transport.barrier()  # the next may be of this step, and take its name
            return
        # Ranks of one host race for the rename: the first one does it for all.
        with suppress(FileNotFoundError):
            partial.rename(target)
        self._transport.barrier()
        self._newest_step = position.step
        for old in self._all()[:-KEEP]:
            shutil.rmtree(old, ignore_errors=True)

    def are_there(self) -> bool:
        """Return whether there is one to go on from, though hosts may have lost it."""
        return bool(self._names(incomplete=True))

    def load(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        engine: Engine,
        incomplete: bool = False,
    ) -> tuple[Position, randomness.States]:
        """Restore the newest checkpoint that is whole; newer ones are removed.

        If another number of ranks wrote it, these get the mean of what they remembered,
        and random numbers go on from where they are.

        Args:
            model: the model.
            optimizer: its optimizer.
            engine: the engine.
            incomplete: files of ranks other than 0 may be lost, on a host that is new
                all of them, and what these ranks remembered with them.

        Returns:
            How far the run had come, and the ``epoch_random`` that was saved.

        Raises:
            InputError: there is none, or none can be read, or it is incomplete, or of
                another model or settings.
        """
        folder, contents, as_before = self._newest(incomplete)
        common = self._common_part(folder, contents)
        self._check_settings(folder, common["settings"])
        own = contents[_file(self._transport.rank)] if as_before else {}
        if engine.plan.local_steps is not None and "own_optimizer" in own:
            common["optimizer"] = own["own_optimizer"]
        _load(folder, model, optimizer, common)
        self._set_what_is_asked(optimizer, common["asked"])
        position = Position(**common["progress"])
        self._newest_step = position.step
        if as_before:
            engine.load_state_dict(own["engine"])
            randomness.restore(own["random"])
            return position, own["epoch_random"]
        written_by = self._share_out(folder, contents, engine, incomplete)
        here = position.among(written_by, self._transport.world_size)
        return here, randomness.states()

    def _check_settings(self, folder: Path, written: Mapping[str, object]) -> None:
        """Check that the run that wrote the checkpoint was set as this one."""
        for name, value in self._settings.items():
            if written[name] != value:
                raise InputError(
                    f"{folder}: is of a run with {name} {written[name]}, this one has "
                    f"{value}: give the same, or begin anew in another folder"
                )

    def _set_what_is_asked(
        self, optimizer: torch.optim.Optimizer, before: Sequence[Mapping[str, Any]]
    ) -> None:
        """Set the options that are asked for otherwise than ``before``.

        And the learning rate, which a schedule may have changed. What else is in groups
        may be what the optimizer has gathered.
        """
        groups = optimizer.param_groups
        for group, asked, was in zip(groups, self._asked, before, strict=True):
            for name, value in asked.items():
                if name == "lr" or not _equal(was.get(name), value):
                    group[name] = value

    def _common_part(
        self, folder: Path, contents: dict[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """Return what rank 0 wrote for all, from a rank that has read its file."""
        holders = self._transport.gather_objects(_file(0) in contents)
        if True not in holders:
            raise InputError(f"{folder / _file(0)}: is not there, and has the model")
        holder, common = holders.index(True), None
        if self._transport.rank == holder:
            common = {name: contents[_file(0)].get(name) for name in COMMON}
        shared: dict[str, Any] = self._transport.broadcast_object(common, holder)
        missing = [name for name, value in shared.items() if value is None]
        if missing:
            raise InputError(
                f"{folder}: lacks {missing[0]!r}: another version of comm-plan wrote "
                "it: go on with that one"
            )
        return shared

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
        own: list[EngineState] = [content["engine"] for content in contents.values()]
        states: list[EngineState] = [
            {**state, "ranks": on_cpu(state["ranks"])} for state in own
        ]
        every_rank = one_by_one(states, self._transport)
        found = [state for states in every_rank for state in states]
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

    def _newest(self, incomplete: bool) -> tuple[Path, dict[str, dict[str, Any]], bool]:
        """Return the newest checkpoint that all ranks have and can read.

        If it may be ``incomplete``, the newest with the file of rank 0.

        What is newer is removed: it is damaged, or a run left it that was killed while
        it wrote, unfinished everywhere or finished on some hosts only.

        Returns:
            Its folder, the files that this rank has read, and whether they are those
            that the same ranks wrote.
        """
        problem = None
        for name in sorted(self._names(incomplete), reverse=True):
            folder = self._folder / name
            files, as_before = self._to_read(folder)
            contents, unreadable = checkpoint_file.read_all(folder, files)
            found = self._first(unreadable)
            if found is None:
                as_before = as_before and self._is_of_as_many(contents)
                if problem and self._transport.rank == 0:
                    logger.warning("%s: going on from %s", problem, name)
                self._remove_newer_than(name)
                return folder, contents, as_before
            problem = problem or found
        raise InputError(problem or f"{self._folder}: no checkpoint to resume from")

    def _to_read(self, folder: Path) -> tuple[list[str], bool]:
        """Return the files that this rank reads, and whether all have their own."""
        ranks = self._transport
        held = ranks.gather_objects({path.name for path in folder.glob("rank-*.pt")})
        everything = set.union(*held)
        as_before = len(everything) == ranks.world_size and all(
            _file(rank) in here for rank, here in enumerate(held)
        )
        if as_before or not everything:
            return [_file(ranks.rank)], as_before
        return sorted(held[ranks.rank].difference(*held[: ranks.rank])), False

    def _is_of_as_many(self, contents: dict[str, dict[str, Any]]) -> bool:
        """Return whether as many ranks as there are wrote all files; not so if lost."""
        (own,) = contents.values()
        ranks = self._transport
        written_by = ranks.gather_objects(own["engine"]["world_size"])
        return all(number == ranks.world_size for number in written_by)

    def _first(self, problem: str | None) -> str | None:
        """Return the first rank's problem, if any has one."""
        problems = self._transport.gather_objects(problem)
        return next((each for each in problems if each is not None), None)

    def _remove_newer_than(self, name: str) -> None:
        for path in self._folder.glob("step-*"):
            if path.name > name:
                shutil.rmtree(path, ignore_errors=True)

    def _names(self, incomplete: bool) -> set[str]:
        """Return the names of those that all hosts have.

        If they may be ``incomplete``, of those of which some host has rank 0's file.
        """
        here = [p for p in self._all() if not incomplete or (p / _file(0)).exists()]
        names = self._transport.gather_objects({path.name for path in here})
        return set.union(*names) if incomplete else set.intersection(*names)

    def _all(self) -> list[Path]:
        return sorted(
            path
            for path in self._folder.glob("step-*")
            if path.name.removeprefix("step-").isdecimal() and path.is_dir()
        )


def _load(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, common: Any
) -> None:
    """Give both what ``common`` holds of them.

    Raises:
        InputError: it is not theirs.
    """
    try:
        model.load_state_dict(common["model"])
        if common["updated"] != _updated(model, optimizer):
            raise InputError(
                f"{folder}: its optimizer had other parameters, or the same in another "
                "order or other groups: make it as it was, or begin anew in another "
                "folder"
            )
        optimizer.load_state_dict(common["optimizer"])
    except (RuntimeError, ValueError) as error:
        cause = one_line(str(error), checkpoint_file.LONGEST_CAUSE)
        raise InputError(f"{folder}: is of another model: {cause}") from None


def _updated(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> list[list[str | None]]:
    """Return the names of the parameters in each group of ``optimizer``.

    It knows what it remembers by their order alone.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = optimizer.param_groups
    return [[names.get(p) for p in group["params"]] for group in groups]


def _equal(one: object, other: object) -> bool:
    """Return whether two options are the same; tensors are as a whole."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return False
    return one == other


def _file(rank: int) -> str:
    return f"rank-{rank:05d}.pt"
