"""What must be known of every compressor, in one place: the base of all specs.

A spec is the ``compressor`` of a bucket in a plan, and it owns all facts about its
method: what users call it, which collectives can carry it, its bytes on the wire, how
much it leaves out, what the profiler measures and what ``auto`` tries. It is data,
importable without PyTorch; the method itself is the class of ``implementation``.

The facts that are declared here without a value have no default: a spec that lacks one
of them is refused when it is imported. The methods that do have a body say what holds
for most compressors; others override them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Annotated, ClassVar, TypeVar

from pydantic import Field
from typing_extensions import Self

from comm_plan.plans.document import Value

FLOAT32_NBYTES = 4
INDEX_NBYTES = 4
LENGTH_NBYTES = 8

RESIDUAL = "residual"
"""The state that error feedback keeps: gradient that was not sent yet."""

VARIANCE = "variance"
"""The state v of VGC: decayed sum of second moments since an element was sent."""

VELOCITY = "velocity"
"""The state of momentum correction: gradients with the momentum of their past."""

FACTORS = "factors"
"""The state of PowerSGD: both factors of the last approximation, row after row."""

OUTER_MOMENTUM = "outer_momentum"
"""The state of local steps: momentum of the steps from round to round."""

EQUAL_ON_ALL_RANKS = (FACTORS, OUTER_MOMENTUM)
"""States that every rank computes alike; the others are each rank's own."""

POWERS = {RESIDUAL: 1, VELOCITY: 1, VARIANCE: 2}
"""Of each rank's own states: with which power of its gradients they grow."""

Density = Annotated[float, Field(ge=1e-12, le=1)]
Positive = Annotated[float, Field(ge=1e-30, le=1e30)]

T = TypeVar("T", int, float)


def selected(numel: int, density: float) -> int:
    """Return how many of ``numel`` elements a density selects: at least one.

    Rounded up, so that ``numel / k`` never exceeds ``1 / density``, the ratio that was
    asked for; floating-point noise in the product does not count.
    """
    return min(numel, max(1, math.ceil(numel * density * (1 - 1e-12))))


def dealt(total: int, parts: int, step: int = 0) -> list[int]:
    """Return how many of ``total`` each of ``parts`` gets, as evenly as can be.

    Part p gets ``floor((total + j) / parts)`` with ``j = (p + step) mod parts``, which
    add up to ``total`` (Hermite's identity); over the steps each gets the odd ones.
    """
    return [(total + (part + step) % parts) // parts for part in range(parts)]


def packed_together(bits: int) -> tuple[int, int]:
    """Return how many codes of ``bits`` bits fill how many whole bytes, the fewest."""
    common = math.gcd(8, bits)
    return 8 // common, bits // common


def packed_nbytes(numel: int, bits: int) -> int:
    """Return the bytes of ``numel`` codes of ``bits`` bits, packed together."""
    together, nbytes = packed_together(bits)
    return -(-numel // together) * nbytes


def for_each(value: T | tuple[T, ...], tensors: int, values: str) -> tuple[T, ...]:
    """Return a value for each of a bucket's ``tensors``.

    Args:
        value: one for all, or one for each.
        tensors: how many there are.
        values: what they are, for the message.

    Raises:
        ValueError: there are values for another number of tensors.
    """
    if not isinstance(value, tuple):
        return (value,) * tensors
    if len(value) != tensors:
        raise ValueError(
            f"{len(value)} {values} for {tensors} tensors: give one for each, in order"
        )
    return value


def of_some(value: T | tuple[T, ...], start: int, stop: int) -> T | tuple[T, ...]:
    """Return the values of tensors ``start..stop`` (exclusive); one for all stays."""
    return value[start:stop] if isinstance(value, tuple) else value


def of_more(
    value: T | tuple[T, ...], start: int, tensors: int, other: T
) -> T | tuple[T, ...]:
    """Return values for ``tensors`` tensors, of which the given are from ``start`` on.

    Args:
        value: one for all, which stays, or one for each of some.
        start: where those begin.
        tensors: how many there are in all.
        other: the value of all others.
    """
    if not isinstance(value, tuple):
        return value
    after = tensors - start - len(value)
    return (other,) * start + value + (other,) * after


def normal_threshold(density: float) -> float:
    """Return the magnitude that this share of standard normal numbers exceeds."""
    return NormalDist().inv_cdf(1 - density / 2)


class Spec(Value):
    """A method of compression and its options; the fields travel in a plan.

    Raises:
        TypeError: when a class with a ``kind`` is defined without all of the facts.
    """

    kind: str

    methods: ClassVar[Mapping[str, str]]
    """What users call it, and the collective that each name means; the first is the
    default."""

    implementation: ClassVar[str]
    """``module:Class`` in ``comm_plan.compressors``."""

    on_gpu: ClassVar[str | None] = None
    """Likewise, for a GPU, where to launch a tensor's operations takes longer than what
    they do; None: the same."""

    dtypes: ClassVar[tuple[str, ...]]
    """Gradient dtypes that it takes."""

    lossless: ClassVar[bool]
    """Whether gradients travel as they are, in their own dtype."""

    sparse: ClassVar[bool]
    """Whether it leaves elements out, so that its cost depends on a density."""

    selects_by_tensor: ClassVar[bool]
    """Whether every step sends of each tensor the share in :meth:`densities`."""

    carries_nonfinite: ClassVar[bool]
    """Whether messages are summed as plain numbers: inf or NaN reaches every rank."""

    needs_second_moments: ClassVar[bool]
    """Whether it wants the per-sample second moments of gradients."""

    variable_length: ClassVar[bool]
    """Whether the length of a message depends on the data of the rank."""

    keeps_last_layer: ClassVar[bool]
    """Whether the last layer stays dense unless told otherwise."""

    by_default: ClassVar[tuple[str, ...]]
    """Those of ``methods`` that ``auto`` may use unless told otherwise."""

    largest_world_size: ClassVar[Mapping[str, int]]
    """By collective, where the number of ranks is limited."""

    agreed_nbytes: ClassVar[int]
    """Bytes per tensor that an all-reduce shares before the message."""

    def share_encoded(self, world_size: int) -> float:
        """Return how much of what one rank alone encodes each of so many does."""
        return 1.0

    @classmethod
    @abstractmethod
    def example(cls) -> Self:
        """Return what the names in ``methods`` mean without options."""

    @classmethod
    @abstractmethod
    def at_density(cls, density: float) -> Self:
        """Return the spec that sends this share of standard normal gradients.

        One that is not ``sparse`` returns its example.
        """

    @abstractmethod
    def second_moment_at(self, density: float) -> float | None:
        """Return the second moment at which it sends ``density`` of normal gradients.

        None: it wants no second moments.
        """

    def expecting(self, density: float) -> Self:
        """Return it as it is where the data decides how much is sent, if it does.

        Args:
            density: what its default options were seen to send.
        """
        return self

    @property
    @abstractmethod
    def state(self) -> tuple[str, ...]:
        """What it remembers of every element from step to step."""

    @property
    @abstractmethod
    def ratio(self) -> float:
        """How much it leaves out, as a factor; 1: nothing.

        It orders compressors for the least-compression rule of the planner: numel / k
        for sparse methods (LAGS: c), 32 bits over the bits of a level for quantisers.
        """

    @abstractmethod
    def message_nbytes(self, numels: Sequence[int], collective: str) -> int:
        """Return the exact bytes that one rank contributes.

        Where the length depends on the data: that at the density the spec expects.

        Args:
            numels: elements of each of the bucket's tensors, float32.
            collective: what carries it, which may change the wire format.
        """

    def planned_nbytes(self, shapes: Sequence[Sequence[int]], collective: str) -> int:
        """Return :meth:`message_nbytes` of tensors of these ``shapes``.

        A method to which a tensor is more than its elements says here what it sends.
        """
        return self.message_nbytes([math.prod(shape) for shape in shapes], collective)

    def summed_as(self, dtype: str, collective: str) -> str:
        """Return the dtype of what ``collective`` sums, for gradients of ``dtype``."""
        return dtype if self.lossless else "float32"

    def gathered_nbytes(self, numels: Sequence[int]) -> int:
        """Return the bytes of what ranks gather, all together, before the message.

        Nothing, unless they agree on more than ``agreed_nbytes``.
        """
        return 0

    @abstractmethod
    def densities(self, tensors: int) -> tuple[float, ...]:
        """Return the share sent of each of a bucket's ``tensors``.

        Raises:
            ValueError: the spec is for another number of tensors.
        """

    def fitted(self, shapes: Sequence[Sequence[int]]) -> Self:
        """Return the spec for tensors of these ``shapes``.

        The same, unless the method is not meant for some of them.
        """
        return self

    def restricted_to(self, start: int, stop: int) -> Self:
        """Return the spec for the bucket's tensors ``start..stop`` (exclusive).

        The same, unless it holds something for single tensors.
        """
        return self

    def placed(self, start: int, tensors: int) -> Self:
        """Return the spec for ``tensors`` tensors, of which the bucket's begin there.

        It says of the bucket what this one says, whatever it says of the others.
        """
        return self

    @abstractmethod
    def variants(self, max_ratio: float) -> tuple[Self, ...]:
        """Return what ``auto`` tries of it."""

    def _with(self, **values: object) -> Self:
        """Return the spec with these ``values``; itself where it has them already."""
        if all(getattr(self, name) is value for name, value in values.items()):
            return self
        return self.model_copy(update=values)

    @classmethod
    def collectives(cls) -> tuple[str, ...]:
        """Return the collectives that can carry it; the first is the default."""
        return tuple(dict.fromkeys(cls.methods.values()))

    @classmethod
    def default_collective(cls) -> str:
        """Return the collective that carries it unless told otherwise."""
        return cls.collectives()[0]

    @property
    def length_nbytes(self) -> int:
        """Bytes that a rank gathers before its message: the length, where it varies."""
        return LENGTH_NBYTES if self.variable_length else 0

    def too_many_ranks(self, collective: str, world_size: int) -> str | None:
        """Return why ``collective`` cannot carry it among so many ranks, or None."""
        limit = self.largest_world_size.get(collective)
        if limit is None or world_size <= limit:
            return None
        others = [c for c in self.collectives() if c not in self.largest_world_size]
        return (
            f"{self.kind} by {collective} is for at most {limit} ranks, here are "
            f"{world_size}: use {' or '.join(others) or 'another method'}"
        )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        """Refuse a concrete spec that lacks a fact."""
        super().__pydantic_init_subclass__(**kwargs)
        if not isinstance(cls.model_fields["kind"].default, str):
            return
        facts = {name for name in Spec.__class_vars__ if not name.startswith("_")}
        missing = {name for name in facts if not hasattr(cls, name)}
        missing |= cls.__abstractmethods__
        if missing:
            raise TypeError(
                f"compressor spec {cls.__name__} lacks {', '.join(sorted(missing))}: "
                "every fact of plans/compression/spec.py must be stated"
            )


class EveryElement(Spec):
    """A method that sends something of every element, so that none has a density."""

    sparse = False
    selects_by_tensor = False
    variable_length = False
    needs_second_moments = False

    @classmethod
    def example(cls) -> Self:
        """Return the spec with its default options."""
        return cls.model_validate({})

    @classmethod
    def at_density(cls, density: float) -> Self:
        """Return the example: there is no density."""
        return cls.example()

    def second_moment_at(self, density: float) -> None:
        """Return None: it wants no second moments."""

    @property
    def state(self) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def densities(self, tensors: int) -> tuple[float, ...]:
        """Return 1 for each tensor."""
        return (1.0,) * tensors

    def variants(self, max_ratio: float) -> tuple[Self, ...]:
        """Return this one."""
        return (self,)
