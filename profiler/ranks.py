"""The ranks' iterations as one: in training all of them wait for the slowest.

The ranks begin each iteration together. Some part of it is late on one rank, some on
another, and which changes from iteration to iteration; so a moment of the run is, in
each iteration, that of the rank that reaches it last. Its median is later than any
rank's own median, the more so the more the ranks disturb each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from comm_plan.errors import MismatchError
from comm_plan.profiler.timings import Timings


def slowest_of(ranks: Sequence[Timings]) -> Timings:
    """Return the iterations of a whole run from those of its ranks.

    Args:
        ranks: by rank, of as many iterations and tensors each. The order of the tensors
            is rank 0's, so that all plan alike.
    """
    forward = np.stack([each.forward_s for each in ranks])
    backward = forward + np.stack([each.backward_s for each in ranks])
    update = backward + np.stack([each.update_s for each in ranks])
    ready = forward[:, :, None] + np.stack([each.ready_s for each in ranks])
    forward_end, backward_end = forward.max(axis=0), backward.max(axis=0)
    return Timings(
        forward_s=forward_end,
        backward_s=backward_end - forward_end,
        update_s=update.max(axis=0) - backward_end,
        host_backward_s=np.stack([each.host_backward_s for each in ranks]).max(axis=0),
        ready_s=np.fmax.reduce(ready) - forward_end[:, None],
        orders=ranks[0].orders,
    )


def order_of_ranks(ranks: Sequence[Timings]) -> dict[str, str]:
    """Return what a profile's environment says of the tensors' order on the ranks."""
    if len(ranks) == 1:
        return {}
    first = ranks[0].orders[0]
    differ = [str(rank) for rank, each in enumerate(ranks) if each.orders[0] != first]
    if not differ:
        return {"order_of_ranks": f"the same on all {len(ranks)} ranks"}
    return {"order_of_ranks": f"rank 0's; it differs on ranks {', '.join(differ)}"}


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
