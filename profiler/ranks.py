"""One profile for all ranks: a collective waits for the slowest of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from comm_plan.errors import MismatchError
from comm_plan.plans import Profile, Spread


def slowest_of(profiles: Sequence[Profile]) -> Profile:
    """Return the profile of a whole run from those of its ranks.

    Every time is the largest of the ranks' medians. The order of the tensors, and what
    is no time, is rank 0's, so that all ranks plan alike.

    Args:
        profiles: by rank.

    Raises:
        MismatchError: the ranks measured different models.
    """
    first = profiles[0]
    for rank, profile in enumerate(profiles):
        if profile.model.fingerprint != first.model.fingerprint:
            raise MismatchError(
                f"rank {rank} measured model {profile.model.fingerprint[:19]}, rank 0 "
                f"{first.model.fingerprint[:19]}: load the same workload with the same "
                "options on all ranks"
            )
    ready_s = [{t.name: t.ready_s for t in profile.tensors} for profile in profiles]
    in_order = accumulate(
        (max(times[t.name] for times in ready_s) for t in first.tensors), max
    )
    changes = {
        "tensors": tuple(
            tensor.model_copy(update={"ready_s": at_s})
            for tensor, at_s in zip(first.tensors, in_order, strict=True)
        ),
        "forward_s": max(profile.forward_s for profile in profiles),
        "backward_s": max(profile.backward_s for profile in profiles),
        "update_s": max(profile.update_s for profile in profiles),
        "forward_spread": _widest(profiles, lambda profile: profile.forward_spread),
        "backward_spread": _widest(profiles, lambda profile: profile.backward_spread),
        "environment": {**first.environment, **_order_of_ranks(profiles)},
    }
    return first.model_copy(update=changes)


def _widest(
    profiles: Sequence[Profile], spread_of: Callable[[Profile], Spread | None]
) -> Spread | None:
    spreads = [spread for p in profiles if (spread := spread_of(p)) is not None]
    if not spreads:
        return None
    return Spread(
        p05_s=min(spread.p05_s for spread in spreads),
        p95_s=max(spread.p95_s for spread in spreads),
    )


def _order_of_ranks(profiles: Sequence[Profile]) -> dict[str, str]:
    orders = [[tensor.name for tensor in profile.tensors] for profile in profiles]
    differ = [str(r) for r, order in enumerate(orders) if order != orders[0]]
    if len(profiles) == 1:
        return {}
    if not differ:
        return {"order_of_ranks": f"the same on all {len(profiles)} ranks"}
    return {"order_of_ranks": f"rank 0's; it differs on ranks {', '.join(differ)}"}
