"""How many samples a model is called with."""

from __future__ import annotations

from comm_plan.errors import MismatchError
from comm_plan.runtime.flat import tensors_in


def batch_size(arguments: object) -> int:
    """Return the length of the first tensor among the (nested) ``arguments``.

    Raises:
        MismatchError: there is no tensor with a first dimension.
    """
    for tensor in tensors_in(arguments):
        if tensor.ndim:
            return len(tensor)
    raise MismatchError(
        "the model was called without a tensor, so its batch size is unknown: pass "
        "the batch as a tensor, or inside tuples, lists or dictionaries"
    )
