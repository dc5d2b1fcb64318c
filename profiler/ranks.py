"""The ranks' iterations as one: in training all of them wait for the slowest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from comm_plan.arrays import FloatArray
from comm_plan.errors import MismatchError, one_line
from comm_plan.profiler.timings import Timings


def slowest_of(ranks: Sequence[Timings]) -> Timings:
    """Return the iterations of a whole run from those of its ranks.

    Every time is of the rank whose median is the largest, a tensor's of the rank on
    which it is ready last.

    Args:
        ranks: by rank, of as many iterations and tensors each. The order of the tensors
            is rank 0's, so that all plan alike.
    """
    ready = np.stack([each.waited_for_s for each in ranks])
    tensors = range(ready.shape[2])
    columns = [_slowest([*ready[:, :, tensor]]) for tensor in tensors]
    return Timings(
        forward_s=_slowest([each.forward_s for each in ranks]),
        backward_s=_slowest([each.backward_s for each in ranks]),
        update_s=_slowest([each.update_s for each in ranks]),
        total_s=np.mean([each.total_s for each in ranks], axis=0),
        host_backward_s=_slowest([each.host_backward_s for each in ranks]),
        ready_s=np.stack(columns, axis=1) if columns else ready[0],
        orders=ranks[0].orders,
    )


def _slowest(of_ranks: Sequence[FloatArray]) -> FloatArray:
    """Return the times with the largest median; NaN is none."""
    medians = [
        float(np.nanmedian(each)) if not np.isnan(each).all() else -np.inf
        for each in of_ranks
    ]
    return of_ranks[int(np.argmax(medians))]


def order_of_ranks(ranks: Sequence[Timings]) -> dict[str, str]:
    """Return what a profile's environment says of the tensors' order on the ranks."""
    if len(ranks) == 1:
        return {}
    first = ranks[0].orders[0]
    differ = [str(rank) for rank, each in enumerate(ranks) if each.orders[0] != first]
    if not differ:
        return {"order_of_ranks": f"the same on all {len(ranks)} ranks"}
    named = one_line(", ".join(differ))
    return {"order_of_ranks": f"rank 0's; it differs on ranks {named}"}


def check_same_model(fingerprints: Sequence[str]) -> None:
    """Check that all ranks measure the same model.

    Args:
        fingerprints: of each rank's.

    Raises:
        MismatchError: they do not.
    """
    for rank, fingerprint in enumerate(fingerprints):
        if fingerprint != fingerprints[0]:
            raise MismatchError(
                f"rank {rank} measured model {fingerprint[:19]}, rank 0 "
                f"{fingerprints[0][:19]}: load the same workload with the same options "
                "on all ranks"
            )
