"""Plans in the Trainer of Hugging Face Transformers.

::

    trainer = Trainer(model, arguments, train_dataset=data)  # or a subclass
    use_plan(trainer, "plan.json")  # the one line
    trainer.train()

Checkpoints of the trainer hold the residuals of all ranks too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from typing_extensions import Unpack

from comm_plan.errors import InputError
from comm_plan.integrations import accelerate
from comm_plan.plans import Plan
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.entry import EngineOptions

FILE = "comm_plan.pt"
"""In each of the trainer's checkpoints."""

logger = logging.getLogger("comm_plan")


def use_plan(
    trainer: Trainer, plan: Plan | str, **options: Unpack[EngineOptions]
) -> Mapping[nn.Module, Engine]:
    """Let ``trainer`` train by ``plan``.

    Args:
        trainer: one that has not begun.
        plan: a plan for its model, or the path of one.
        **options: as for :class:`~comm_plan.runtime.engine.Engine`.

    Returns:
        The engine of its model, once it trains.

    Raises:
        DocumentError: the plan cannot be read.
        InputError: it has local steps, or the trainer has a plan already; by
            ``trainer.train()``: the trainer has made another Accelerator, as for each
            trial of ``hyperparameter_search``, or has not prepared its model.
    """
    if any(isinstance(c, _Residuals) for c in trainer.callback_handler.callbacks):
        raise InputError("the trainer has a plan already: make another trainer")
    prepared = trainer.accelerator
    engines = accelerate.use_plan(prepared, plan, **options)
    residuals = _Residuals(engines.values(), lambda: trainer.accelerator is prepared)
    trainer.add_callback(residuals)
    begin = trainer.train

    @wraps(begin)
    def train(
        resume_from_checkpoint: str | bool | None = None, *others: Any, **named: Any
    ) -> Any:
        residuals.resume_from(resume_from_checkpoint)
        trainer.model_wrapped = trainer.model  # a compiled one would not be prepared
        return begin(resume_from_checkpoint, *others, **named)

    trainer.train = train
    return engines


class _Residuals(TrainerCallback):  # type: ignore[misc]
    """Saves what the engines remember with the trainer's checkpoints."""

    def __init__(
        self, engines: Iterable[Engine], is_in_use: Callable[[], bool]
    ) -> None:
        self._engines = engines
        self._is_in_use = is_in_use
        self._resumed: Path | None = None

    def resume_from(self, checkpoint: str | bool | None) -> None:
        """Note which checkpoint the trainer goes on from; True: its newest."""
        if checkpoint is None or isinstance(checkpoint, bool):
            self._resumed = None
        else:
            self._resumed = Path(checkpoint)

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **others: object,
    ) -> None:
        """Gather the residuals of all ranks, and write them on one."""
        writes = args.should_save
        states = [engine.gathered_state(keep=writes) for engine in self._engines]
        if writes:
            torch.save(states, _folder(args, state) / FILE)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **others: object,
    ) -> None:
        """Take the residuals over if the trainer goes on from a checkpoint.

        Raises:
            InputError: the plan is not in use.
        """
        if not self._is_in_use():
            raise InputError(
                "the trainer has made another Accelerator, as hyperparameter_search "
                "does for each trial, which knows of no plan: search without, then "
                "call use_plan on a trainer with what was found"
            )
        if not list(self._engines):
            raise InputError(
                "the trainer has not prepared its model, so nothing averages its "
                "gradients: call trainer.train() before what else prepares it"
            )
        if state.global_step == 0:
            return
        path = (self._resumed or _folder(args, state)) / FILE
        if not path.exists():
            logger.warning("no %s: residuals begin empty", path)
            return
        states = torch.load(path, weights_only=True, map_location="cpu")
        for engine, saved in zip(self._engines, states, strict=True):
            engine.load_state_dict(saved)


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the checkpoint that belongs to the current step."""
    return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
