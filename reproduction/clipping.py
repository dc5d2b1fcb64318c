"""What TernGrad's clipping does to gradients, in closed form.

For gradients g of deviation 1 and f, g clipped at c, all follows from three means:
length ``sqrt(E[f^2])``, direction ``E[g f] / length``, and, as ternarising keeps an
element with probability ``|f| / c``, the share of zeros ``1 - E|f| / c``. The paper's
section 3.3 supposes normal gradients; Laplace's distribution has heavier tails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True)
class Clipped:
    """What clipping at ``c`` deviations does to gradients of one distribution.

    Attributes:
        length: of the clipped gradient, relative to the original's.
        angle_degrees: between the two.
        zeros: share of elements that ternarising makes 0 on average.
    """

    length: float
    angle_degrees: float
    zeros: float


def normal(c: float) -> Clipped:
    """Return it for normal gradients."""
    gauss = NormalDist()
    beyond, density = 1 - gauss.cdf(c), gauss.pdf(c)
    product = 1 - 2 * beyond
    square = product - 2 * c * density + 2 * c * c * beyond
    magnitude = 2 * (gauss.pdf(0) - density) + 2 * c * beyond
    return _clipped(product, square, magnitude, c)


def laplace(c: float) -> Clipped:
    """Return it for Laplace gradients of deviation 1, whose tails are heavier."""
    scale = math.sqrt(0.5)
    x = c / scale
    beyond = math.exp(-x)
    product = scale**2 * (2 - (2 + x) * beyond)
    square = scale**2 * (2 - 2 * (1 + x) * beyond)
    magnitude = scale * (1 - beyond)
    return _clipped(product, square, magnitude, c)


def _clipped(product: float, square: float, magnitude: float, c: float) -> Clipped:
    """Return it from E[g f], E[f^2] and E|f| of f, g clipped, with E[g^2] = 1."""
    length = math.sqrt(square)
    angle = math.degrees(math.acos(product / length))
    return Clipped(length, angle, zeros=1 - magnitude / c)
