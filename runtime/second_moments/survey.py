"""Whether a model has exact second moments: found out in one of its steps.

What stands against them partly shows in the modules, partly only in a forward and a
backward pass. A survey is attached for one step, computes what VGC would need, throws
it away and remembers the first objection; the step goes on as if nobody watched.
"""

from __future__ import annotations

import torch
from torch import nn

from comm_plan.errors import one_line
from comm_plan.plans.parameters import COMPILED
from comm_plan.runtime.second_moments.exact import (
    ExactSecondMoments,
    NoExactSecondMoments,
)


class Survey:
    """Watches ``model`` until it is closed.

    Attributes:
        objection: why there are no exact second moments; None: nothing was found.
    """

    def __init__(self, model: nn.Module) -> None:
        """Attach the hooks, but to a compiled model: they would stay in its code."""
        self.objection: str | None = None
        self._moments: ExactSecondMoments | None = None
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        if _is_compiled(model):
            self.objection = "the model is compiled"
            return
        try:
            self._moments = ExactSecondMoments(model, on_error=self._object)
        except NoExactSecondMoments as error:
            self._object(error)
            return
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._ask)
            for parameter in model.parameters()
            if parameter.requires_grad
        ]

    def close(self) -> None:
        """Take the hooks off the model."""
        if self._moments is not None:
            self._moments.remove()
        for handle in self._handles:
            handle.remove()

    def _ask(self, parameter: nn.Parameter) -> None:
        assert self._moments is not None
        try:
            self._moments.of(parameter)
        except NoExactSecondMoments as error:
            self._object(error)

    def _object(self, error: Exception) -> None:
        if self.objection is None:
            reason = getattr(error, "reason", str(error))
            self.objection = one_line(reason)


def _is_compiled(model: nn.Module) -> bool:
    return any(
        COMPILED in f"{name}." or module._compiled_call_impl is not None
        for name, module in model.named_modules()
    )
