"""Plans in Hugging Face Accelerate.

::

    accelerator = Accelerator()
    use_plan(accelerator, "plan.json")  # the one line
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)

``prepare`` then puts a model on its device, with mixed precision and ``torch.compile``
as configured, but does not wrap it in DDP. ``accumulate``, ``no_sync``,
``trigger_sync_in_backward``, ``join_uneven_inputs``, ``clip_grad_norm_`` and
``save_state`` work as ever; the latter keeps the residuals of all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import DDPCommunicationHookType
from torch import nn
from typing_extensions import Unpack

from comm_plan.errors import InputError
from comm_plan.plans import Plan, as_plan
from comm_plan.plans.parameters import model_fingerprint, trainable
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.entry import EngineOptions, parallelize
from comm_plan.runtime.refusals import check_every_step
from comm_plan.runtime.state import EngineState


def use_plan(
    accelerator: Accelerator, *plans: Plan | str, **options: Unpack[EngineOptions]
) -> Mapping[nn.Module, Engine]:
    """Let ``accelerator`` make models train by plans.

    Args:
        accelerator: one that has prepared no model yet.
        *plans: plans, or their paths; one for each model that will be trained, and
            one more where layers are unfrozen and the model is prepared again.
        **options: as for :class:`~comm_plan.runtime.engine.Engine`; what is not given
            is as ``DistributedDataParallelKwargs`` among the accelerator's handlers
            have it.

    Returns:
        The engine of each model that was prepared; it is filled as they are, and
        emptied by ``accelerator.free_memory``, which closes them.

    Raises:
        DocumentError: a plan cannot be read.
        InputError: no plan was given, or one has local steps, or the accelerator shards
            the model (FSDP, DeepSpeed, Megatron), has one in DDP already, or was given
            a hook for DDP's communication.
    """
    if not plans:
        raise InputError("no plan is given: name one for each model")
    kind = accelerator.distributed_type.value
    if kind != "NO" and not kind.startswith("MULTI_"):
        raise InputError(
            f"Accelerate distributes by {kind}, which averages gradients itself: plans "
            "are for models that each process holds whole, as with DDP"
        )
    if any(_is_wrapped(model) for model in accelerator._models):
        raise InputError(
            "Accelerate has prepared a model already, in DDP, which averages its "
            "gradients: call use_plan before accelerator.prepare"
        )
    handler = accelerator.ddp_handler
    if handler is not None and handler.comm_hook != DDPCommunicationHookType.NO:
        raise InputError(
            f"DistributedDataParallelKwargs asks for DDP's {handler.comm_hook.value} "
            "hook, and a plan takes the place of DDP: leave comm_hook out, and solve "
            "with --compressor"
        )
    loaded = [as_plan(plan) for plan in plans]
    for plan in loaded:
        check_every_step(plan, "Accelerate")
    engines: dict[nn.Module, Engine] = {}
    prepare, free = accelerator.prepare_model, accelerator.free_memory
    pause, go_on = accelerator.no_sync, accelerator.trigger_sync_in_backward
    join = accelerator.join_uneven_inputs

    def prepare_model(
        model: nn.Module,
        device_placement: bool | None = None,
        evaluation_mode: bool = False,
    ) -> nn.Module:
        prepared: nn.Module = prepare(model, device_placement, evaluation_mode=True)
        if not evaluation_mode and not _averages(engines.get(prepared), prepared):
            plan = _plan_for(prepared, loaded)
            options.setdefault("grad_scaler", accelerator.scaler)
            _as_for_ddp(options, accelerator.ddp_handler)
            engine = parallelize(prepared, plan, **options)
            if prepared not in engines:
                residuals = _Residuals(engines, prepared, accelerator)
                accelerator.register_for_checkpointing(residuals)
            engines[prepared] = engine
        return prepared

    def no_sync(model: nn.Module) -> AbstractContextManager[None]:
        engine = engines.get(model)
        paused: AbstractContextManager[None]
        paused = pause(model) if engine is None else engine.no_sync()
        return paused

    def trigger_sync_in_backward(model: nn.Module) -> AbstractContextManager[None]:
        engine = engines.get(model)
        synced: AbstractContextManager[None]
        synced = go_on(model) if engine is None else engine.sync_again()
        return synced

    def join_uneven_inputs(
        joinables: Sequence[Any], even_batches: bool | None = None
    ) -> AbstractContextManager[None]:
        joined: AbstractContextManager[None]
        joined = join([engines.get(one, one) for one in joinables], even_batches)
        return joined

    def free_memory(*objects: object) -> Sequence[object]:
        for engine in engines.values():
            engine.close()
        engines.clear()
        kept = [o for o in accelerator._custom_objects if not isinstance(o, _Residuals)]
        accelerator._custom_objects = kept
        freed: Sequence[object] = free(*objects)
        return freed

    accelerator.prepare_model = prepare_model
    accelerator.no_sync = no_sync
    accelerator.trigger_sync_in_backward = trigger_sync_in_backward
    accelerator.join_uneven_inputs = join_uneven_inputs
    accelerator.free_memory = free_memory
    return engines


class _Residuals:
    """What Accelerate saves and loads: called on all ranks, written by one."""

    def __init__(
        self,
        engines: Mapping[nn.Module, Engine],
        model: nn.Module,
        accelerator: Accelerator,
    ) -> None:
        self._engines = engines
        self._model = model
        self._accelerator = accelerator

    def state_dict(self) -> EngineState:
        process = self._accelerator
        writes = process.is_main_process
        if process.project_configuration.save_on_each_node:
            writes = process.is_local_main_process
        return self._engines[self._model].gathered_state(keep=writes)

    def load_state_dict(self, state: EngineState) -> None:
        self._engines[self._model].load_state_dict(state)


def _is_wrapped(model: nn.Module) -> bool:
    """Return whether Accelerate, which marks what it hands out, handed out another."""
    return not getattr(model, "_is_accelerate_prepared", False)


def _averages(engine: Engine | None, model: nn.Module) -> bool:
    """Return whether ``engine`` averages all that is trained of ``model`` now."""
    planned = () if engine is None else engine.plan.buckets
    names = {name for bucket in planned for name in bucket.tensors}
    return trainable(model).keys() <= names


def _as_for_ddp(
    options: EngineOptions, ddp: DistributedDataParallelKwargs | None
) -> None:
    """Add to ``options`` what DDP was to be told, where nothing else is given."""
    if ddp is not None:
        options.setdefault("find_unused_parameters", ddp.find_unused_parameters)
        options.setdefault("broadcast_buffers", ddp.broadcast_buffers)
        options.setdefault("gradient_as_bucket_view", ddp.gradient_as_bucket_view)


def _plan_for(model: nn.Module, plans: list[Plan]) -> Plan:
    """Return the plan for ``model``, or, if there is none, one that will be refused."""
    own = model_fingerprint(model)
    return next((plan for plan in plans if plan.model.fingerprint == own), plans[0])
