"""Closed-form costs of collectives, split into messages, volume and reduction.

A collective over P ranks that puts its critical path through ``messages`` messages,
moves ``volume`` bytes per byte of its buffer and reduces ``reduced`` of them costs ::

    T(n) = messages * alpha + volume * n * beta + reduced * n * gamma

with n the bytes of the buffer as a network document counts them (all-gather: the
gathered total; gTop-k and SparDL: the k values and k indices of one rank; two passes:
the message of one rank), alpha the seconds per message, beta seconds per byte on a
link, gamma seconds per byte reduced.

Each collective's file has its own: the all-reduce forms are Table II of MG-WFBP (Shi et
al., 2019), all-gather of top-k and gTop-k are Table I of gTop-k (Shi et al., 2019).

Differences from the papers: they take P as a power of two. Trees and doublings have
whole rounds, so for any other P ``log2 P`` is rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass


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
