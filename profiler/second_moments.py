"""What an iteration takes longer in which second moments are had of all parameters.

Iterations with and without them run in turn, and in each the ranks meet after backward,
as in training: a rank that is done and goes on would take cores from those that are
not. Exact ones are caught while backward runs, where the model has them; else the batch
is cut into micro-batches. Of those, gradients are ready only in the last one's
backward, so there is less to hide messages behind than a plan's schedule takes there to
be.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from comm_plan.plans import Profile
from comm_plan.plans.parameters import trainable
from comm_plan.plans.profile import SecondMoments
from comm_plan.profiler.timings import Measurable
from comm_plan.profiler.waiting import Rendezvous
from comm_plan.runtime.iteration import iterate
from comm_plan.runtime.second_moments import ExactSecondMoments
from comm_plan.runtime.second_moments.choice import EXACT, chosen, estimator
from comm_plan.transports.base import Transport
from comm_plan.transports.elapsed import elapsed_s
from comm_plan.workloads.base import endless

ITERATIONS = 10
"""With second moments, and as many without; medians are taken."""


def with_second_moments(
    workload: Measurable, profile: Profile, transport: Transport
) -> Profile:
    """Return ``profile`` with what second moments take, if there can be any.

    A collective call; the iterations train the model.

    Args:
        workload: what was profiled, on the transport's device.
        profile: of it.
        transport: the ranks, all of which run at once.
    """
    found = profile.second_moments
    if found is None or not found.fit:
        return profile
    own_s = _extra_s(workload, found, transport)
    extra_s = max(0.0, float(np.mean(transport.gather_objects(own_s))))
    moments = found.model_copy(update={"extra_s": extra_s})
    return profile.model_copy(update={"second_moments": moments})


def _extra_s(workload: Measurable, found: SecondMoments, ranks: Transport) -> float:
    model = workload.model
    optimizer = workload.optimizer(model.parameters())
    batches = endless(workload.batches, ranks.rank, ranks.world_size)
    parts = chosen(found) or EXACT
    meet = Rendezvous(ranks, model).meet
    step = partial(iterate, workload.loss, model, optimizer, meet=meet)

    def plain() -> None:
        step(next(batches))

    def extended() -> None:
        step(next(batches), micro_batches=parts, meet=asked_and_met)

    def asked_and_met() -> None:
        for parameter in trainable(model).values():
            g = parameter.grad
            if g is not None and not (g.is_sparse or g.is_complex()):
                moments.of(parameter)
        meet()

    seconds: list[tuple[float, float]] = []
    for _ in range(1 + ITERATIONS):
        plain_s = elapsed_s(ranks, plain)
        moments = estimator(model, parts) or ExactSecondMoments(model)
        seconds.append((plain_s, elapsed_s(ranks, extended)))
        moments.remove()
    plain_s, extended_s = np.median(seconds[1:], axis=0)
    return float(extended_s - plain_s)
