"""PyTorch DDP's own compression: its communication hooks, by name."""

from __future__ import annotations

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def register(model: DistributedDataParallel, hook: str | None) -> None:
    """Let ``model`` exchange its gradients by ``hook``.

    Args:
        model: that no hook is registered on.
        hook: ``fp16``, or ``powersgd`` and a rank; None: as they are.

    Raises:
        ValueError: there is no such hook.
    """
    match (hook or "").split():
        case []:
            return
        case ["fp16"]:
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        case ["powersgd", rank]:
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=int(rank), start_powerSGD_iter=2
            )
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        case _:
            raise ValueError(f"no hook is called {hook}")
