"""``torch.compile`` that leaves the plan its overlap.

The backward of a compiled region is one node of autograd: all its gradients arrive at
its end. Of a model that is compiled as a whole they arrive when backward is over, and
nothing overlaps. So the regions are the largest modules that have all their parameters
in one bucket, which is sent as a whole anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from comm_plan.plans import Plan, as_plan
from comm_plan.plans.parameters import trainable
from comm_plan.runtime.agreement import check_plan


def compile_blocks(model: nn.Module, plan: Plan | str, **options: Any) -> list[str]:
    """Compile the parts of ``model`` whose gradients ``plan`` sends together.

    In place: names, ``state_dict()`` and the model's class stay as they are. What lies
    between the parts, and what has no parameters, runs as before. A list or dictionary
    of modules, which is never called itself, is compiled entry by entry; all else has
    to be called as a module (not by ``training_step``, as Lightning does).

    Args:
        model: the model that the plan is for.
        plan: a plan, or the path of one.
        **options: as for ``torch.compile``.

    Returns:
        The names of the modules that were compiled; ``""`` is the whole model.

    Raises:
        DocumentError: the plan cannot be read.
        MismatchError: the plan is for another model.
    """
    plan = as_plan(plan)
    check_plan(plan, model, plan.world_size)
    parameters = trainable(model)
    bucket_of = {
        parameters[name]: number
        for number, bucket in enumerate(plan.buckets)
        for name in bucket.tensors
    }
    compiled: list[str] = []

    def visit(name: str, module: nn.Module) -> None:
        buckets = {bucket_of[p] for p in module.parameters() if p in bucket_of}
        children = dict(module.named_children())
        within = len(buckets) == 1 or (buckets and not children)
        if within and _has_forward(module):
            _compile(module, **options)
            compiled.append(name)
            return
        for child, part in children.items():
            visit(f"{name}.{child}" if name else child, part)

    visit("", model)
    return compiled


def _compile(module: nn.Module, **options: Any) -> None:
    """Do what ``module.compile`` does, for classes of ``torch.nn`` too.

    It hands the compiler nothing but frames of ``torch.nn``, which that one skips until
    there is a ``forward`` of somebody else.
    """
    call: Callable[..., Any] = module._call_impl

    def entered(*inputs: Any, **keywords: Any) -> Any:
        return call(*inputs, **keywords)

    module._compiled_call_impl = torch.compile(entered, **options)


def _has_forward(module: nn.Module) -> bool:
    """Return whether ``module`` can be called: an ``nn.ModuleList`` cannot."""
    return type(module).forward is not nn.Module.forward
