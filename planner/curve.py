"""A cost as a function of size: monotone, piecewise affine, vectorised.

Every measured or modelled cost becomes one form: K lines, each valid from its start to
the next one's. That is general enough for raw measurements and special enough for an
exact planner that is linear in the number of tensors (``optimal``).

Which of a network's figures rules:

- **Samples rule where they reach.** Small messages are not affine (Gloo on 4 hosts:
  0.56 ms for 4 bytes, 5.3 ms for 256), a protocol switch is real, and the planner takes
  any monotone cost, so nothing is gained by smoothing them away with a fit. Medians are
  joined by straight lines. Noise is dealt with where it would mislead: samples that
  decrease are pooled to their geometric mean (isotonic regression of the logarithms),
  so neither one slow nor one fast outlier stands.
- **The fit rules beyond them**: the start-up at 0 bytes and the slope above the largest
  sample. Without a fit the cost is flat below the first sample, and above the last it
  goes on along the chord from the largest sample at most half its size; a network is
  never free, so where that chord is flat the last sample's bandwidth goes on.
- **Without samples the fit is the curve**, raised to its running maximum where a later
  segment starts lower. One segment keeps its ``affine`` form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from comm_plan.arrays import SHORTEST_S, FloatArray, non_decreasing
from comm_plan.plans.network import CollectiveCost, Segment


@dataclass(frozen=True, eq=False)
class CostCurve:
    """A non-decreasing cost ``T(n) = alpha_s[k] + beta_s_per_byte[k] * n``.

    ``n`` is a size in bytes (or in elements, for what a device computes).

    Attributes:
        starts: [K] where each piece starts; the first at 0, increasing.
        alpha_s: [K] seconds; negative for a piece steeper than its chord from 0.
        beta_s_per_byte: [K] seconds per byte.
    """

    starts: FloatArray
    alpha_s: FloatArray
    beta_s_per_byte: FloatArray

    def __call__(self, nbytes: ArrayLike) -> FloatArray:
        """Return the cost of each of ``nbytes`` (any shape)."""
        sizes = np.asarray(nbytes, dtype=np.float64)
        piece = np.searchsorted(self.starts, sizes, side="right") - 1
        seconds = self.alpha_s[piece] + self.beta_s_per_byte[piece] * sizes
        return np.asarray(seconds, dtype=np.float64)

    @property
    def affine(self) -> tuple[float, float] | None:
        """``(alpha_s, beta_s_per_byte)`` if one line is the whole curve."""
        if len(self.starts) > 1:
            return None
        return float(self.alpha_s[0]), float(self.beta_s_per_byte[0])

    @property
    def startup_s(self) -> float:
        """The cost of an empty message."""
        return float(self.alpha_s[0])

    @cached_property
    def best_rate(self) -> float:
        """Largest size / cost over all sizes, in bytes per second; may be infinite."""
        ends = np.append(self.starts[1:], np.inf)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            at_start = self.starts / (self.alpha_s + self.beta_s_per_byte * self.starts)
            at_end = 1 / (self.alpha_s / ends + self.beta_s_per_byte)
        return float(np.nanmax(np.concatenate([at_start, at_end])))

    def stretched(self, sizes: float, seconds: float) -> CostCurve:
        """Return the curve with all sizes and all costs multiplied by a factor."""
        return CostCurve(
            self.starts * sizes,
            self.alpha_s * seconds,
            self.beta_s_per_byte * seconds / sizes,
        )

    def raised(self, seconds: float) -> CostCurve:
        """Return the curve with ``seconds`` more at every size."""
        return CostCurve(self.starts, self.alpha_s + seconds, self.beta_s_per_byte)

    def line(self, smallest: float, largest: float) -> tuple[float, float]:
        """Return the best single line between two sizes: ``(alpha_s, beta)``.

        Least squares of the relative error over 64 sizes in geometric progression,
        neither figure below 0. An affine curve is its own line.
        """
        if self.affine is not None:
            return self.affine
        sizes = np.geomspace(max(smallest, 1), max(largest, 1), 64)
        seconds = np.maximum(self(sizes), SHORTEST_S)
        ones, slopes = 1 / seconds, sizes / seconds
        design = np.stack([ones, slopes], axis=1)
        alpha, beta = np.linalg.lstsq(design, np.ones_like(sizes), rcond=None)[0]
        if beta < 0:
            return float(ones.sum() / (ones @ ones)), 0.0
        if alpha < 0:
            return 0.0, float(slopes.sum() / (slopes @ slopes))
        return float(alpha), float(beta)


def affine(alpha_s: float, beta_s_per_byte: float) -> CostCurve:
    """Return ``T(n) = alpha_s + beta_s_per_byte * n``."""
    return CostCurve(np.zeros(1), np.array([alpha_s]), np.array([beta_s_per_byte]))


def from_points(
    sizes: Sequence[float],
    seconds: Sequence[float],
    startup_s: float | None = None,
    slope: float | None = None,
) -> CostCurve:
    """Join measured points by lines; see the module's rules for what lies outside.

    Args:
        sizes: [N] increasing.
        seconds: [N] the cost of each, pooled here where it decreases.
        startup_s: the cost at 0; None: that of the first point.
        slope: seconds per byte above the last point; None: from the points.
    """
    x = np.asarray(sizes, dtype=np.float64)
    y = non_decreasing(np.asarray(seconds, dtype=np.float64))
    if x[0] > 0:
        first = y[0] if startup_s is None else min(startup_s, y[0])
        x, y = np.concatenate([[0.0], x]), np.concatenate([[first], y])
    beta = np.append(
        np.diff(y) / np.diff(x), _tail_slope(x, y) if slope is None else slope
    )
    return CostCurve(x, y - beta * x, beta)


def from_segments(segments: Iterable[Segment]) -> CostCurve:
    """Return the running maximum of a fit's segments."""
    pieces = list(segments)
    starts = [float(piece.from_nbytes) for piece in pieces]
    lines: list[tuple[float, float, float]] = []
    reached = 0.0
    for piece, start, end in zip(pieces, starts, [*starts[1:], np.inf], strict=True):
        alpha, beta = piece.alpha_s, piece.beta_s_per_byte
        rises_from = start
        if alpha + beta * start < reached:
            lines.append((start, reached, 0.0))
            rises_from = (reached - alpha) / beta if beta > 0 else np.inf
        if rises_from < end:
            lines.append((rises_from, alpha, beta))
            reached = alpha + beta * end
    starts_alphas_betas = np.array(lines).T
    return CostCurve(*starts_alphas_betas)


def measured(cost: CollectiveCost) -> CostCurve:
    """Return the curve of a collective in a network document."""
    segments = cost.fit.segments if cost.fit else ()
    if not cost.samples:
        return from_segments(segments)
    return from_points(
        [sample.nbytes for sample in cost.samples],
        [sample.median_s for sample in cost.samples],
        startup_s=segments[0].alpha_s if segments else None,
        slope=(segments[-1].beta_s_per_byte or None) if segments else None,
    )


def _tail_slope(x: FloatArray, y: FloatArray) -> float:
    half = int(np.searchsorted(x, x[-1] / 2, side="right")) - 1
    if half >= 0 and x[half] > 0 and y[-1] > y[half]:
        return float((y[-1] - y[half]) / (x[-1] - x[half]))
    return float(y[-1] / x[-1]) if x[-1] > 0 else 0.0
