"""Plans in Lightning.

::

    trainer = lightning.Trainer(strategy=PlanStrategy("plan.json"), devices=2)
    trainer.fit(module)

The strategy is Lightning's ``DDPStrategy`` without DDP: launching, devices, samplers
and logging are as there. Checkpoints hold the residuals of all ranks, also those that
are saved after ``fit``, and with
``precision="16-mixed"`` residuals follow the scale of the loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import DDPStrategy

from comm_plan.errors import InputError
from comm_plan.plans import Plan, as_plan
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.entry import EngineOptions, parallelize
from comm_plan.runtime.refusals import check_every_step
from comm_plan.runtime.state import EngineState, gathered, on_cpu
from comm_plan.transports.connect import current_transport

KEY = "comm_plan"
"""In Lightning's checkpoints."""


class PlanStrategy(DDPStrategy):  # type: ignore[misc]
    """Trains by a plan.

    Args:
        plan: a plan for the LightningModule, or the path of one.
        **options: as for :class:`~comm_plan.runtime.engine.Engine`, where
            ``grad_scaler`` is the trainer's unless another is given; all others as for
            Lightning's ``DDPStrategy``.

    Attributes:
        engine: executes the plan; None while nothing is fitted.

    Raises:
        InputError: a hook for DDP's communication is given.
    """

    strategy_name = KEY

    def __init__(self, plan: Plan | str, **options: Any) -> None:
        own = EngineOptions.__annotations__.keys()
        super().__init__(**{k: v for k, v in options.items() if k not in own})
        if self._ddp_comm_hook is not None:
            raise InputError(
                "ddp_comm_hook is for DDP, whose place the plan takes: leave it out, "
                "and solve with --compressor"
            )
        self.engine: Engine | None = None
        self._plan = plan
        self._options = {k: v for k, v in options.items() if k in own}
        self._restored: Any = None
        self._left: EngineState | None = None

    def configure_ddp(self) -> None:
        """Make the module train by the plan, in place of wrapping it.

        Raises:
            InputError: the plan has local steps, or corrects momentum.
        """
        assert self.model is not None  # it is being set up
        plan = as_plan(self._plan)
        check_every_step(plan, "Lightning")
        if plan.momentum_correction:
            raise InputError(
                "the plan corrects momentum, and Lightning makes the optimizer later: "
                "solve without --momentum-correction"
            )
        scaler = getattr(self.precision_plugin, "scaler", None)
        self.engine = parallelize(
            self.model, plan, **{"grad_scaler": scaler, **self._options}
        )
        if self._restored is not None:
            self.engine.load_state_dict(self._restored)
        self._restored = self._left = None

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Accumulate gradients locally."""
        assert self.engine is not None  # something is fitted
        with self.engine.no_sync():
            yield

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        filepath: str | Path,
        storage_options: Any = None,
    ) -> None:
        """Save the residuals of all ranks too."""
        if self.engine is not None:
            checkpoint[KEY] = self.engine.gathered_state(keep=self.is_global_zero)
        elif self._left is not None:
            ranks = current_transport(as_plan(self._plan).backend)
            checkpoint[KEY] = gathered(self._left, ranks, keep=self.is_global_zero)
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Keep the residuals for the engine that is still to be made.

        A test or a validation makes none: they go with :meth:`teardown`. In the middle
        of ``fit``, as when Lightning has looked for a learning rate, there is one.
        """
        checkpoint: dict[str, Any] = super().load_checkpoint(*arguments, **options)
        self._restored, self._left = checkpoint.get(KEY), None
        if self.engine is not None and self._restored is not None:
            self.engine.load_state_dict(self._restored)
        return checkpoint

    def teardown(self) -> None:
        """Close the engine, and forget residuals that none has taken.

        Its own are kept for a checkpoint after ``fit``.
        """
        self._restored = None
        with ExitStack() as left:
            left.callback(super().teardown)
            if self.engine is not None:
                left.callback(self.engine.close)
                state = self.engine.state_dict()
                self._left = {**state, "ranks": on_cpu(state["ranks"])}
                self.engine = None
