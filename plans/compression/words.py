"""VGC, Strom and hybrid: the data decides how many 32-bit words are sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import Self

from comm_plan.plans.compression.spec import (
    RESIDUAL,
    VARIANCE,
    Density,
    Positive,
    Spec,
    normal_threshold,
    selected,
)

WORD_NBYTES = 4
DEFAULT_TAU = 0.01

Zeta = Annotated[float, Field(gt=0, le=1)]


class Words(Spec):
    """A method whose message is as many words as elements were significant."""

    expected_density: Density = 0.01

    dtypes = ("float32",)
    lossless = False
    sparse = True
    selects_by_tensor = False
    carries_nonfinite = False
    variable_length = True
    keeps_last_layer = False
    by_default = ()  # the data decides the density
    largest_world_size = {}
    agreed_nbytes = 0

    @property
    def ratio(self) -> float:
        """1 over the density that is expected."""
        return 1 / self.expected_density

    def message_nbytes(self, numels: Sequence[int], collective: str) -> int:
        """Return one 32-bit word per element expected to be sent."""
        words = sum(selected(numel, self.expected_density) for numel in numels)
        return WORD_NBYTES * words

    def expecting(self, density: float) -> Self:
        """Return it with the density that was seen of its defaults.

        Itself, if it was told another or has other options.
        """
        if "expected_density" in self.model_fields_set:
            return self
        expecting = self.model_copy(update={"expected_density": density})
        seen = self.example().model_copy(update={"expected_density": density})
        return expecting if expecting == seen else self

    def densities(self, tensors: int) -> tuple[float, ...]:
        """Return the expected density for each tensor."""
        return (self.expected_density,) * tensors

    def variants(self, max_ratio: float) -> tuple[Self, ...]:
        """Return this one: the data decides."""
        return (self,)


class Judged(Words):
    """A method that judges an element by its variance, for which it keeps a v."""

    alpha: Positive = 1.5  # higher: more compression
    zeta: Zeta = 0.999

    needs_second_moments = True

    def second_moment_at(self, density: float) -> float:
        """Return the v at which ``gradient ** 2 > alpha * v`` holds at ``density``."""
        return normal_threshold(density) ** 2 / self.alpha

    @property
    def state(self) -> tuple[str, ...]:
        """Residual and variance."""
        return RESIDUAL, VARIANCE


class Thresholded(Words):
    """A method that sends sign * tau where the residual exceeds tau."""

    tau: Positive  # higher: more compression

    @classmethod
    def example(cls) -> Self:
        """Return a threshold of a hundredth, and other defaults."""
        return cls.model_validate({"tau": DEFAULT_TAU})

    @classmethod
    def at_density(cls, density: float) -> Self:
        """Return the threshold that this share of normal gradients exceeds."""
        fields = {"expected_density": density, "tau": normal_threshold(density)}
        return cls.model_validate(fields)


class Vgc(Judged):
    """Variance-based: send an element once its mean outweighs its variance."""

    kind: Literal["vgc"] = "vgc"
    as_printed: bool = False  # forget what is sent entirely, rounding errors too

    methods = {"vgc": "allgather"}
    implementation = "vgc:VgcCompressor"

    @classmethod
    def example(cls) -> Self:
        """Return the paper's alpha and zeta."""
        return cls()

    @classmethod
    def at_density(cls, density: float) -> Self:
        """Return the expectation; :meth:`second_moment_at` makes it come true."""
        return cls(expected_density=density)

    def message_nbytes(self, numels: Sequence[int], collective: str) -> int:
        """Return the words and one exponent byte a tensor, padded to a word."""
        exponents = WORD_NBYTES * math.ceil(len(numels) / WORD_NBYTES)
        return exponents + super().message_nbytes(numels, collective)


class Strom(Thresholded):
    """Send sign * tau where the residual exceeds tau."""

    kind: Literal["strom"] = "strom"

    methods = {"strom": "allgather"}
    implementation = "strom:StromCompressor"
    needs_second_moments = False

    def second_moment_at(self, density: float) -> None:
        """Return None: it wants no second moments."""

    @property
    def state(self) -> tuple[str, ...]:
        """The residual."""
        return (RESIDUAL,)


class Hybrid(Thresholded, Judged):
    """Variance-based and Strom together: both conditions must hold."""

    kind: Literal["hybrid"] = "hybrid"

    methods = {"hybrid": "allgather"}
    implementation = "hybrid:HybridCompressor"
