"""Closed-form costs of collectives, split into messages, volume and reduction.

A collective over P ranks that puts its critical path through ``messages`` messages,
moves ``volume`` bytes per byte of its buffer and reduces ``reduced`` of them costs ::

    T(n) = messages * alpha + volume * n * beta + reduced * n * gamma

with n the bytes of the buffer as a network document counts them (all-gather: the
gathered total; gTop-k: the k values and k indices of one rank), alpha seconds per
message, beta seconds per byte on a link, gamma seconds per byte reduced.

Sources: the all-reduce forms are Table II of MG-WFBP (Shi et al., 2019), all-gather
top-k and gTop-k are Table I of gTop-k (Shi et al., 2019).

Differences from the papers: they take P as a power of two. Trees and doublings have
whole rounds, so for any other P ``log2 P`` is rounded up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from comm_plan.errors import InputError


@dataclass(frozen=True)
class Terms:
    """The coefficients of a collective's cost at one world size.

    Attributes:
        messages: times alpha; messages one after another.
        volume: times n beta; bytes through a rank's link per byte of the buffer.
        reduced: times n gamma; bytes that a rank reduces per byte of the buffer.
    """

    messages: float
    volume: float
    reduced: float = 0.0

    def seconds(
        self,
        nbytes: float,
        alpha_s: float,
        beta_s_per_byte: float,
        gamma_s_per_byte: float = 0.0,
    ) -> float:
        """Return the cost of a buffer of ``nbytes`` bytes."""
        per_byte = self.volume * beta_s_per_byte + self.reduced * gamma_s_per_byte
        return self.messages * alpha_s + per_byte * nbytes


def rounds(world_size: int) -> int:
    """Return ``log2 P`` rounded up: the rounds of a binary tree over P ranks."""
    return (world_size - 1).bit_length()


def allreduce_ring(world_size: int) -> Terms:
    """2(P-1) alpha + 2(P-1)/P n beta + (P-1)/P n gamma."""
    share = (world_size - 1) / world_size
    return Terms(2 * (world_size - 1), 2 * share, share)


def allreduce_recursive_doubling(world_size: int) -> Terms:
    """Lg P (alpha + n beta + n gamma)."""
    steps = rounds(world_size)
    return Terms(steps, steps, steps)


def allreduce_halving_doubling(world_size: int) -> Terms:
    """2 lg P alpha + 2(P-1)/P n beta + (P-1)/P n gamma."""
    share = (world_size - 1) / world_size
    return Terms(2 * rounds(world_size), 2 * share, share)


def allreduce_binary_tree(world_size: int) -> Terms:
    """2 lg P alpha + lg P n (2 beta + gamma)."""
    steps = rounds(world_size)
    return Terms(2 * steps, 2 * steps, steps)


def allreduce_two_levels(world_size: int, ranks_per_node: int) -> tuple[Terms, Terms]:
    """Reduce-scatter inside a node, all-reduce between nodes, all-gather inside.

    Returns:
        The terms on the links inside a node and on those between nodes, rings both;
        their costs, each with its own alpha and beta, add up.

    Raises:
        InputError: the ranks do not fill whole nodes.
    """
    if ranks_per_node < 1 or world_size % ranks_per_node:
        raise InputError(
            f"{world_size} ranks do not fill nodes of {ranks_per_node}: give a divisor"
        )
    inside = allreduce_ring(ranks_per_node)
    between = allreduce_ring(world_size // ranks_per_node)
    return inside, Terms(
        between.messages,
        between.volume / ranks_per_node,
        between.reduced / ranks_per_node,
    )


def allgather_ring(world_size: int) -> Terms:
    """(P-1) alpha + (P-1)/P n beta, n the gathered total."""
    return Terms(world_size - 1, (world_size - 1) / world_size)


def allgather_doubling(world_size: int) -> Terms:
    """Lg P alpha + (P-1)/P n beta, n the gathered total.

    Top-k by all-gather, ``lg P alpha + 2k(P-1) beta``, is this with n = 2kP elements.
    """
    return Terms(rounds(world_size), (world_size - 1) / world_size)


def reduce_scatter_ring(world_size: int) -> Terms:
    """(P-1) alpha + (P-1)/P n (beta + gamma), n the input."""
    share = (world_size - 1) / world_size
    return Terms(world_size - 1, share, share)


def broadcast_binomial(world_size: int) -> Terms:
    """Lg P (alpha + n beta)."""
    steps = rounds(world_size)
    return Terms(steps, steps)


def point_to_point(world_size: int) -> Terms:
    """Alpha + n beta, whatever the world size."""
    return Terms(1, 1)


def gtopk_tree(world_size: int) -> Terms:
    """2 lg P alpha + 4k lg P beta: n = 2k elements up a tree and down again."""
    steps = rounds(world_size)
    return Terms(2 * steps, 2 * steps)


CLOSED_FORMS: dict[str, Callable[[int], Terms]] = {
    "allreduce": allreduce_ring,
    "allgather": allgather_ring,
    "reduce_scatter": reduce_scatter_ring,
    "broadcast": broadcast_binomial,
    "point_to_point": point_to_point,
    "gtopk": gtopk_tree,
}
"""The form assumed of each collective of a network document unless told otherwise."""

_BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": lambda world_size: 2 * (world_size - 1) / world_size,
    "allgather": lambda world_size: (world_size - 1) / world_size,
    "reduce_scatter": lambda world_size: (world_size - 1) / world_size,
    "broadcast": lambda world_size: 1.0,
    "point_to_point": lambda world_size: 1.0,
}


def bus_factor(collective: str, world_size: int) -> float | None:
    """Return bus bandwidth / algorithm bandwidth as nccl-tests defines it.

    Returns:
        None for a collective that has no bus bandwidth (gTop-k).
    """
    factor = _BUS_FACTORS.get(collective)
    return None if factor is None else factor(world_size)
