"""The one line in a user's own training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from torch import nn

from comm_plan.plans import Plan, as_plan
from comm_plan.plans.parameters import trainable
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.step import OnNonFinite, SecondMoments
from comm_plan.transports.base import Transport
from comm_plan.transports.connect import current_transport

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from typing_extensions import Unpack


class EngineOptions(TypedDict, total=False):
    """What :func:`parallelize` hands on; see :class:`Engine`."""

    seed: int
    on_nonfinite: OnNonFinite
    find_unused_parameters: bool
    broadcast_buffers: bool
    gradient_as_bucket_view: bool
    second_moments: SecondMoments | None
    grad_scaler: torch.amp.GradScaler | None
    optimizer: torch.optim.Optimizer | None


def parallelize(
    model: nn.Module,
    plan: Plan | str,
    *,
    transport: Transport | None = None,
    process_group: ProcessGroup | None = None,
    **options: Unpack[EngineOptions],
) -> Engine:
    """Make ``model`` train by ``plan`` over all ranks of this run.

    The training loop stays as it is::

        engine = comm_plan.parallelize(model, "plan.json")
        for batch in batches:
            optimizer.zero_grad()
            loss(model(batch)).backward()
            optimizer.step()

    Args:
        model: any model; it is changed in place, not wrapped.
        plan: a plan, or the path of one.
        transport: the ranks; None: those of ``process_group``.
        process_group: of torch.distributed, with the ranks that share the model; None:
            the initialised default one, or else what the launcher's environment says.
        **options: as for :class:`Engine`.

    Returns:
        The engine: ``no_sync()``, ``skip_step()``, ``state_dict()``,
        ``load_state_dict()``, ``close()``.

    Raises:
        DocumentError: the plan cannot be read.
        InputError: as for :class:`Engine`.
        MismatchError: the plan does not fit the model or the run, or ranks differ.
    """
    plan = as_plan(plan)
    parameters = trainable(model).values()
    device = next((parameter.device for parameter in parameters), None)
    if process_group is not None:
        from comm_plan.transports.distributed import over

        transport = over(process_group, device)
    if transport is None:
        transport = current_transport(plan.backend, device)
    return Engine(model, plan, transport, **options)
