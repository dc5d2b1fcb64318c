"""The network: what each collective costs on one cluster, over message sizes."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar

from pydantic import Field, model_validator
from typing_extensions import Self

from comm_plan.plans.document import (
    MAX_INTEGER,
    Document,
    Name,
    Nbytes,
    PositiveCount,
    PositiveSeconds,
    Ranks,
    Seconds,
    SecondsPerByte,
    Sentence,
    Value,
)
from comm_plan.plans.link import EmulatedLink


class Sample(Value):
    """Raw timings of one collective at one size, over ``iterations`` repetitions."""

    nbytes: Nbytes
    median_s: PositiveSeconds
    min_s: PositiveSeconds
    p95_s: PositiveSeconds
    iterations: PositiveCount


class Segment(Value):
    """One line of a piecewise affine cost, valid from ``from_nbytes`` on."""

    from_nbytes: Nbytes
    alpha_s: Seconds
    beta_s_per_byte: SecondsPerByte


class Fit(Value):
    """A piecewise affine cost: ``alpha_s + beta_s_per_byte * nbytes`` by segment."""

    segments: Annotated[tuple[Segment, ...], Field(min_length=1)]
    median_error: Annotated[float, Field(ge=0, le=MAX_INTEGER)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        starts = [segment.from_nbytes for segment in self.segments]
        if starts[0] != 0 or any(a >= b for a, b in pairwise(starts)):
            raise ValueError(
                f"segments start at {starts}: the first must start at 0 and each "
                "later one above the one before"
            )
        return self

    def seconds(self, nbytes: float) -> float:
        """Return the fitted cost of a message of ``nbytes`` bytes."""
        segment = next(s for s in reversed(self.segments) if s.from_nbytes <= nbytes)
        return segment.alpha_s + segment.beta_s_per_byte * nbytes


class CollectiveCost(Value):
    """Samples and fit of one collective; either may be absent, not both.

    They are of float32. ``summing``: by how much longer a byte takes where values of
    another dtype are summed.
    """

    samples: tuple[Sample, ...] = ()
    fit: Fit | None = None
    sync: Sentence | None = None
    summing: dict[Name, SecondsPerByte] = {}

    @classmethod
    def affine(cls, alpha_s: float, beta_s_per_byte: float) -> Self:
        """Return one line: a start-up and seconds a byte."""
        line = Segment(from_nbytes=0, alpha_s=alpha_s, beta_s_per_byte=beta_s_per_byte)
        return cls(fit=Fit(segments=(line,)))

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.samples and self.fit is None:
            raise ValueError("neither samples nor fit: measure, or give one segment")
        sizes = [sample.nbytes for sample in self.samples]
        if any(a >= b for a, b in pairwise(sizes)):
            raise ValueError(f"samples are not sorted by nbytes: {sizes}")
        return self


class Network(Document):
    """Costs of the collectives that were measured on a cluster of ``world_size``.

    ``collectives`` is by name; which names mean something here is known to
    ``comm_plan.collectives.registry``. ``nbytes`` is the full buffer on a rank:
    all-reduce, broadcast and point to point: the message; all-gather: the gathered
    total; reduce-scatter: the input; gTop-k and SparDL: the k values and k indices
    that one rank contributes; two passes: the message of one rank. ``emulated_link`` is
    what the collectives were held back to, if they were.
    """

    SCHEMA: ClassVar[str] = "comm-plan/network"

    backend: Name
    world_size: Ranks
    hosts: tuple[Name, ...] = ()
    collectives: dict[Name, CollectiveCost]
    environment: dict[Name, Sentence] = {}
    emulated_link: EmulatedLink | None = None
