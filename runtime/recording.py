"""Record the steps of a training loop that is not comm-plan's: was it worth it?

::

    with comm_plan.record(engine, "run.json") as run:
        for batch in batches:
            optimizer.zero_grad()
            loss = loss_function(model(batch))
            loss.backward()
            optimizer.step()
            run.loss(loss.item())  # if it shall be in the record

and the same with a model in DistributedDataParallel instead of the engine, for what
there was before. ``comm-plan show`` sets the records side by side, ``comm-plan report``
draws them beside what was predicted.

A step ends when an optimizer has updated the model; of several optimizers the one that
did so first. What passes between two such moments is an iteration, whatever the loop
does in it. Medians of them are compared, so a pause now and then does no harm.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from typing_extensions import Self

from comm_plan.errors import InputError
from comm_plan.plans import RunRecord, check_writable
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.hooks import copyable, updates
from comm_plan.runtime.record import EngineRecorder, Recorder
from comm_plan.transports.base import Transport
from comm_plan.transports.connect import current_transport
from comm_plan.transports.distributed import over


class record:
    """Watches the training steps in its block, and writes the record of the run.

    Every rank over which gradients are averaged enters and leaves the block. If it
    fails, nothing is written.

    Args:
        trained: the engine, which must not be closed within the block, or a model in
            ``DistributedDataParallel``.
        output: where rank 0 writes the record; None: nowhere.
        name: what the record calls the training; None: the model's class.

    Attributes:
        record: the record, once the block has ended.

    Raises:
        InputError: ``trained`` is neither, or ``output`` cannot be written; at the end
            of the block, an optimizer has updated nothing of the model.
    """

    record: RunRecord

    def __init__(
        self,
        trained: Engine | DistributedDataParallel,
        output: str | Path | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self._recorder: Recorder
        self._ranks: Transport
        if isinstance(trained, Engine):
            model = trained.model
            self._recorder = EngineRecorder(trained)
            self._ranks = trained.transport
        elif isinstance(trained, DistributedDataParallel):
            model = trained.module
            self._recorder = Recorder(model)
            self._ranks = _ranks_of(trained)
        else:
            raise InputError(
                f"record: {type(trained).__name__} averages no gradients: give what "
                "parallelize returned, or a model in DistributedDataParallel"
            )
        if output is not None:
            check_writable(Path(output))
        self._output = None if output is None else Path(output).absolute()
        self._name = name or type(model).__name__
        self._own = frozenset(model.parameters())
        self._optimizer: torch.optim.Optimizer | None = None
        self._begun_s = 0.0

    def __enter__(self) -> Self:
        """Hook all optimizers."""
        with ExitStack() as opened:
            opened.enter_context(self._recorder.counting_traffic())
            on_update = copyable(self._on_update)
            opened.callback(register_optimizer_step_post_hook(on_update).remove)
            self._watching = opened.pop_all()
        self._begun_s = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the hook off; unless the block failed, make the record."""
        self._watching.close()
        if error is not None:
            return
        steps = min(self._ranks.gather_objects(self._recorder.steps))
        if not steps:
            raise InputError(
                "record: no optimizer has updated the model in the block: train in it"
            )
        self.record = self._recorder.record(
            self._ranks, workload=self._name, steps=steps
        )
        if self._output is not None and self._ranks.rank == 0:
            self.record.save(self._output)

    def loss(self, value: float) -> None:
        """Note the training loss of the step that has just ended.

        Rank 0's counts. Others need not call this.
        """
        if self._recorder.steps:
            self._recorder.add_loss(value)

    def evaluated(self, metric: str, value: float) -> None:
        """Note what an evaluation after the last step has found; a collective call.

        The ranks wait for each other, and what has passed since that step is no
        iteration's.

        Args:
            metric: such as ``accuracy``; of ``loss`` and ``perplexity`` less is better.
            value: on held-out data; rank 0's counts. inf and NaN are left out.
        """
        self._recorder.add_evaluation(metric, value, self._recorder.steps)
        self._ranks.barrier()
        self._begun_s = time.perf_counter()

    def _on_update(
        self, optimizer: torch.optim.Optimizer, inputs: object, keywords: object
    ) -> None:
        """End the step, if it is that of this model."""
        if self._optimizer is None and updates(optimizer, self._own):
            self._optimizer = optimizer
        if optimizer is self._optimizer:
            now_s = time.perf_counter()
            self._recorder.add_step(now_s - self._begun_s)
            self._begun_s = now_s


def _ranks_of(model: DistributedDataParallel) -> Transport:
    """Return the ranks over which ``model`` is averaged, which may be some of all."""
    device = next(model.parameters()).device
    if model.process_group is dist.group.WORLD:
        return current_transport(device=device)
    return over(model.process_group, device)
