"""From the raw times of every rank's iterations to one profile.

Medians over the iterations; on several ranks the slowest rank's. The tensors are in the
order in which their hooks ran; where that differs between iterations, in the order of
their median times. A trainable tensor that gets no gradient must still be in a plan: it
comes last, ready at the end of backward.

What cannot be said in a number is in the profile's ``environment``: ``order``,
``unused`` (tensors without a gradient) and on CUDA ``bound_by``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import nn

from comm_plan.arrays import FloatArray
from comm_plan.errors import InputError, one_line
from comm_plan.plans import DTYPE_NBYTES, Profile, Spread, TensorTiming
from comm_plan.plans.parameters import dtype_name
from comm_plan.plans.profile import SecondMoments
from comm_plan.profiler.describe import describe_model, tensor_timing
from comm_plan.profiler.environment import describe_device, environment
from comm_plan.profiler.ranks import order_of_ranks, slowest_of
from comm_plan.profiler.timings import Timings
from comm_plan.runtime.refusals import check_dense
from comm_plan.runtime.second_moments.choice import common

LAUNCH_BOUND = 0.95
"""The host was busy for more than this share of backward: it sets the pace."""

LONGEST_LIST = 2000
"""Characters of a list of tensors, which a document bounds; its middle is left out."""


def check_parameters(name: str, parameters: dict[str, nn.Parameter]) -> None:
    """Check that gradients of the model called ``name`` can be planned.

    Raises:
        InputError: there are none, or some have no shape or no elements, are sparse, or
            of a dtype that cannot be sent.
    """
    if not parameters:
        raise InputError(f"model {name} has no trainable parameters: nothing to plan")
    for key, parameter in parameters.items():
        check_dense(f"parameter {key} of model {name}", parameter, "make it dense")
        if dtype_name(parameter) not in DTYPE_NBYTES:
            raise InputError(
                f"parameter {key} of model {name} is {dtype_name(parameter)}: only "
                f"{', '.join(DTYPE_NBYTES)} can be planned"
            )
        if not parameter.numel():
            raise InputError(
                f"parameter {key} of model {name} has no elements: freeze it "
                "(requires_grad_(False)), there is nothing to train"
            )


def assemble(
    name: str,
    batch_size: int,
    parameters: dict[str, nn.Parameter],
    of_ranks: Sequence[Timings],
    *,
    lag_s: float = 0.0,
    waiting_s: float = 0.0,
) -> Profile:
    """Return the profile of the iterations that all ranks timed.

    Args:
        name: of the model.
        batch_size: of a rank.
        parameters: in the order of the timings' tensors.
        of_ranks: the iterations of each rank.
        lag_s: what handing a gradient to another thread takes.
        waiting_s: what an iteration takes beyond its parts.
    """
    device = next(iter(parameters.values())).device
    timings = slowest_of(of_ranks)
    backward_s = float(np.median(timings.backward_s))
    return Profile(
        model=describe_model(name, parameters),
        device=describe_device(device),
        environment=environment(device)
        | _findings(device, parameters, timings)
        | order_of_ranks(of_ranks),
        batch_size=batch_size,
        forward_s=float(np.median(timings.forward_s)),
        backward_s=backward_s,
        update_s=float(np.median(timings.update_s)),
        waiting_s=waiting_s,
        handoff_s=lag_s,
        tensors=in_ready_order(parameters, timings, backward_s),
        iterations=len(timings.backward_s),
        forward_spread=_spread(timings.forward_s),
        backward_spread=_spread(timings.backward_s),
    )


def with_findings(
    profile: Profile, of_ranks: Sequence[tuple[SecondMoments, dict[str, int]]]
) -> Profile:
    """Return ``profile`` with what every rank found in one of its iterations.

    Args:
        profile: of the model.
        of_ranks: how second moments can be had; the rows of sparse gradients, of which
            those of the rank with most count.
    """
    rows: dict[str, int] = {}
    for _, own in of_ranks:
        rows |= {name: max(n, rows.get(name, 0)) for name, n in own.items()}
    tensors = tuple(
        tensor.model_copy(update={"rows": rows.get(tensor.name)})
        for tensor in profile.tensors
    )
    moments = common([moments for moments, _ in of_ranks])
    return profile.model_copy(update={"tensors": tensors, "second_moments": moments})


def in_ready_order(
    parameters: dict[str, nn.Parameter], timings: Timings, backward_s: float
) -> tuple[TensorTiming, ...]:
    """Return the tensors in ready order, those without a gradient last."""
    columns = timings.ready_s.T
    median_s = {
        index: float(np.nanmedian(column))
        for index, column in enumerate(columns)
        if not np.isnan(column).all()
    }
    order = list(dict.fromkeys(timings.orders[0]))
    if len(set(timings.orders)) > 1 or set(order) != set(median_s):
        order = sorted(median_s, key=lambda index: median_s[index])
    unused = [index for index in range(len(columns)) if index not in median_s]
    times = [median_s[index] for index in order] + [backward_s] * len(unused)
    named = list(parameters.items())
    return tuple(
        tensor_timing(*named[index], ready_s=ready_s)
        for index, ready_s in zip(order + unused, accumulate(times, max), strict=True)
    )


def _findings(
    device: torch.device, parameters: dict[str, nn.Parameter], timings: Timings
) -> dict[str, str]:
    iterations = len(timings.orders)
    odd = sum(order != timings.orders[0] for order in timings.orders)
    order = f"the same in all {iterations} iterations"
    if odd:
        order = f"by median: it differs in {odd} of {iterations} iterations"
    findings = {"order": order}
    columns = zip(parameters, timings.ready_s.T, strict=True)
    unused = [name for name, column in columns if np.isnan(column).all()]
    if unused:
        findings["unused"] = one_line(", ".join(unused), LONGEST_LIST)
    if device.type == "cuda":
        findings["bound_by"] = bound_by(timings)
    return findings


def bound_by(timings: Timings) -> str:
    """Return who sets the pace of backward: ``host`` (launches) or ``device``."""
    host_s = np.median(timings.host_backward_s)
    busy = host_s > LAUNCH_BOUND * np.median(timings.backward_s)
    return "host" if busy else "device"


def _spread(times_s: FloatArray) -> Spread:
    p05_s, p95_s = np.percentile(times_s, [5, 95])
    return Spread(p05_s=float(p05_s), p95_s=float(p95_s))
