"""What a collective costs at a world size, also one that was not measured.

A collective is ``m`` messages one after another that together carry ``v`` times its
buffer, so a measured curve T gives the cost of one of its messages,
``t(x) = T(x m / v) / m``, and the same collective at another world size is

    T'(n) = m' t(v' n / m') = (m'/m) T(n (v'/v) / (m'/m)).

For an affine cost these are exactly the closed forms of ``collectives.costs``, and a
measured curve keeps its shape, protocol switches included, at the size of the messages
that really travel. The same step builds a collective that was not measured from
``point_to_point``, for which m = v = 1.
"""

from __future__ import annotations

import numpy as np

from comm_plan.collectives.costs import Terms
from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.errors import InputError
from comm_plan.planner.curve import CostCurve, affine, measured
from comm_plan.plans.network import CollectiveCost, Network

LONG_NBYTES = 16 * 2**20
"""A message of this size tells a link's lasting speed: a burst of 128 KiB, common for
token buckets, makes it look 1 % faster."""


def carry(curve: CostCurve, there: Terms, here: Terms) -> CostCurve:
    """Return ``curve``, of a collective with terms ``there``, with terms ``here``."""
    if here.messages == 0:
        return affine(0.0, 0.0)
    messages = here.messages / there.messages
    volume = here.volume / there.volume
    return curve.stretched(sizes=messages / volume, seconds=messages)


def collective_curve(
    network: Network, collective: str, world_size: int, algorithm: str | None = None
) -> CostCurve:
    """Return what ``collective`` costs among ``world_size`` ranks of ``network``.

    As measured, if at this world size; else carried from the measured world size; else
    built from the measured point-to-point cost. ``algorithm`` names the closed form for
    those collectives that have it.

    Raises:
        InputError: neither was measured, or it was measured on one rank only.
    """
    cost = network.collectives.get(collective)
    if cost is not None and world_size == network.world_size:
        return measured(cost)
    source = collective if cost is not None else "point_to_point"
    cost = network.collectives.get(source)
    if cost is None:
        raise InputError(
            f"network has no cost for {collective}: benchmark it, or give its samples "
            "or fit, or those of point_to_point"
        )
    if network.world_size == 1:
        raise InputError(
            f"network was measured with 1 rank and tells nothing of {world_size}: "
            "benchmark it with at least 2"
        )
    there = COLLECTIVES[source].terms(network.world_size, algorithm)
    here = COLLECTIVES[collective].terms(world_size, algorithm)
    return carry(measured(cost), there, here)


def best_bus_bandwidth(network: Network) -> float:
    """Return the best bus bandwidth that the network document shows, in bytes/s.

    Of all-reduce at all sizes, those beyond the last sample included, so that no
    predicted dense plan is faster than a link of this speed allows. Of the other
    collectives only the lasting one.
    """
    rates = [lasting_bus_bandwidth(network)]
    if (cost := network.collectives.get("allreduce")) is not None:
        rate = measured(cost).best_rate
        rates.append(bus_rate("allreduce", rate, network.world_size))
    return max(rates)


def lasting_bus_bandwidth(network: Network) -> float:
    """Return the best bus bandwidth of all collectives' long messages, in bytes/s.

    The buffers and token buckets of a link let short messages through faster than the
    link is. Where none is long, the longest that was measured counts: what the fit says
    beyond, nobody has seen.
    """
    rates = (
        bus_rate(name, _lasting_rate(cost), network.world_size)
        for name, cost in network.collectives.items()
    )
    return max(rates, default=0.0)


def bus_rate(collective: str, bytes_per_s: float, world_size: int) -> float:
    """Return the bus bandwidth of a collective of so many bytes a second, in bytes/s.

    0 for a collective that has none, and for one rank, which sends nothing.
    """
    bus_factor = COLLECTIVES[collective].bus_factor
    if bus_factor is None or world_size == 1:
        return 0.0
    return bus_factor(world_size) * bytes_per_s


def _lasting_rate(cost: CollectiveCost) -> float:
    """Return the best rate from :data:`LONG_NBYTES` on, else the largest sample's."""
    curve = measured(cost)
    largest = cost.samples[-1].nbytes if cost.samples else LONG_NBYTES
    if largest < LONG_NBYTES:
        return largest / float(curve(largest))
    first = int(np.searchsorted(curve.starts, LONG_NBYTES, side="right")) - 1
    starts = np.append(LONG_NBYTES, curve.starts[first + 1 :])
    long = CostCurve(starts, curve.alpha_s[first:], curve.beta_s_per_byte[first:])
    return long.best_rate
