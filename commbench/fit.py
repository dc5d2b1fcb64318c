"""Robust piecewise affine fits of measured costs.

A collective costs about ``alpha + beta * nbytes`` until the library switches protocol
or algorithm, and then again with other constants. Plain least squares fails on such
data three ways: it looks at the largest sizes only, it follows outliers, and it gives
negative start-up times. Instead:

- **Residuals are logarithms** of fitted over measured, so 5 % count the same at 4 bytes
  and at 64 MB, and the sum of their absolute values is minimised, so an outlier has no
  leverage.
- **A line is a level times a shape**, ``level * (1 + slope * nbytes)``. For a given
  slope the best level is the median ratio of measured to shape; the slope is searched
  on a logarithmic grid that then zooms in, with the constant and the proportional line
  as its ends. So alpha and beta cannot come out negative, and nothing is iterated that
  might not converge.
- **Segments** come from dynamic programming over the samples, as in Bellman and Roth,
  "Curve fitting by segmented straight lines" (1969). Their number, at most
  :data:`MAX_SEGMENTS`, minimises the Bayesian information criterion for Laplace
  residuals, ``2 n log(mean residual) + log(n) * parameters``. A line counts as two
  parameters and a switch as three: counted as one, switches are found in noise (Hall,
  Osborn and Sakkas, "Inference on structural breaks using information criteria",
  2013). A segment holds at least :data:`MIN_POINTS` samples; so many outliers in a row
  cannot be told from one.
- **The cost never falls with size**: two neighbours are only allowed if they meet
  between the last sample of the first and the first sample of the second, where the
  switch is then put, or if the second lies above the first there; then the cost jumps
  up, half way (geometrically). A measured drop is thus smoothed over. Planners may rely
  on a fit being monotone, not on its being continuous.

One sample says nothing about the start-up: the fit is proportional to it (constant for
0 bytes). Two fix a line, unless it would fall or start below 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from comm_plan.commbench.measurement import merged
from comm_plan.errors import InputError
from comm_plan.plans.network import Fit, Sample, Segment

MIN_POINTS = 3
MAX_SEGMENTS = 4
MAX_CUTS = 32
"""So many places are tried for a switch; more samples share them evenly."""

NOISE_FLOOR = 0.005
"""Mean residual below which a further segment explains nothing."""

_GRID_RATIO = 10 ** (1 / 8)
_ZOOMS = 3
_ZOOM_POINTS = 17

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Line:
    alpha_s: float
    beta_s_per_byte: float
    residual: float  # sum over the samples of |log fitted / measured|

    def at(self, nbytes: float) -> float:
        return self.alpha_s + self.beta_s_per_byte * nbytes


@dataclass(frozen=True)
class _Chain:
    """The best lines that cover samples ``0 .. end`` in so many segments."""

    residual: float
    lines: tuple[_Line, ...]
    starts: tuple[int, ...]


def fit(samples: Sequence[Sample]) -> Fit:
    """Fit the medians of ``samples``.

    Args:
        samples: measurements of one collective, in any order; several of the same
            size are made one.

    Returns:
        A piecewise affine cost that never falls with size; ``median_error`` is the
        median over the samples of ``abs(fitted / measured - 1)``.

    Raises:
        InputError: there are no samples.
    """
    if not samples:
        raise InputError("no samples to fit: measure at least one size")
    distinct = merged(samples)
    nbytes = np.array([sample.nbytes for sample in distinct], dtype=np.float64)
    seconds = np.array([sample.median_s for sample in distinct])
    chain = _best_chain(nbytes, seconds)
    segments = tuple(
        Segment(
            from_nbytes=start,
            alpha_s=line.alpha_s,
            beta_s_per_byte=line.beta_s_per_byte,
        )
        for start, line in zip(chain.starts, chain.lines, strict=True)
    )
    result = Fit(segments=segments)
    fitted = np.array([result.seconds(size) for size in nbytes])
    error = float(np.median(np.abs(fitted / seconds - 1)))
    return result.model_copy(update={"median_error": error})


def _best_chain(nbytes: Array, seconds: Array) -> _Chain:
    """Return the chain over all samples with the least information criterion."""
    count = len(nbytes)

    def criterion(chain: _Chain) -> float:
        mean = max(chain.residual / count, NOISE_FLOOR)
        parameters = 2 * len(chain.lines) + 3 * (len(chain.lines) - 1)
        return 2 * count * math.log(mean) + parameters * math.log(count)

    return min(_chains(nbytes, seconds), key=criterion)


def _chains(nbytes: Array, seconds: Array) -> Iterator[_Chain]:
    """Yield the best chain of 1, 2, ... segments over all samples."""
    count = len(nbytes)
    ends = [*_cuts(nbytes), count]
    lines: dict[tuple[int, int], _Line] = {}

    def line(start: int, end: int) -> _Line:
        if (start, end) not in lines:
            lines[start, end] = _line(nbytes[start:end], seconds[start:end])
        return lines[start, end]

    best = {end: _first(line(0, end)) for end in ends}
    yield best[count]
    for _ in range(MAX_SEGMENTS - 1):
        longer: dict[int, _Chain] = {}
        for end in ends:
            for start in (cut for cut in best if end - cut >= MIN_POINTS):
                gap = nbytes[start - 1], nbytes[start]
                chain = _joined(best[start], line(start, end), *gap)
                if chain and (
                    end not in longer or chain.residual < longer[end].residual
                ):
                    longer[end] = chain
        if count in longer:
            yield longer[count]
        best = longer


def _cuts(nbytes: Array) -> range:
    """Return the indices where a further segment may start."""
    first, end = MIN_POINTS, len(nbytes) - MIN_POINTS + 1
    return range(first, end, max(1, math.ceil((end - first) / MAX_CUTS)))


def _first(line: _Line) -> _Chain:
    return _Chain(line.residual, (line,), (0,))


def _joined(chain: _Chain, line: _Line, last: float, first: float) -> _Chain | None:
    """Append ``line``, None if the cost would fall between ``last`` and ``first``."""
    start = _switch(chain.lines[-1], line, last, first)
    if start is None:
        return None
    return _Chain(
        chain.residual + line.residual, (*chain.lines, line), (*chain.starts, start)
    )


def _switch(left: _Line, right: _Line, last: float, first: float) -> int | None:
    """Return from which size in ``last .. first`` the right line holds."""
    steps = [right.at(size) - left.at(size) for size in (last, first)]
    if max(steps) < 0:
        return None
    if min(steps) >= 0:
        meeting = math.sqrt(last * first)
    else:
        meeting = last + (first - last) * steps[0] / (steps[0] - steps[1])
    # The whole byte on that side of the meeting point where the right line is higher.
    return math.ceil(meeting) if steps[1] > steps[0] else math.floor(meeting)


@dataclass(frozen=True)
class _Candidate:
    slope_per_byte: float  # 0: constant, infinite: proportional
    line: _Line


def _line(nbytes: Array, seconds: Array) -> _Line:
    """Return the line through one segment with the least sum of |log residuals|."""
    best = _best_of(_grid(nbytes), nbytes, seconds)
    ratio = _GRID_RATIO
    for _ in range(_ZOOMS):
        if best.slope_per_byte in (0, math.inf):
            break
        zoomed = best.slope_per_byte * np.geomspace(1 / ratio, ratio, _ZOOM_POINTS)
        nearby = _best_of(zoomed, nbytes, seconds)
        best = min(best, nearby, key=lambda candidate: candidate.line.residual)
        ratio = ratio ** (2 / (_ZOOM_POINTS - 1))
    return best.line


def _grid(nbytes: Array) -> Array:
    """Return slopes per byte: the two ends, and from hardly rising to steeply."""
    positive = nbytes[nbytes > 0]
    if len(positive) == 0:
        return np.array([0.0])
    lowest, highest = 1e-3 / positive.max(), 1e3 / positive.min()
    steps = math.ceil(math.log(highest / lowest) / math.log(_GRID_RATIO)) + 1
    proportional = [math.inf] if len(positive) == len(nbytes) else []
    return np.array([*proportional, 0.0, *np.geomspace(lowest, highest, steps)])


def _best_of(slopes: Array, nbytes: Array, seconds: Array) -> _Candidate:
    """Return the best slope with its line; of equals, the first."""
    finite = np.isfinite(slopes)
    alphas = np.where(finite, 1.0, 0.0)
    betas = np.where(finite, slopes, 1.0)
    shapes = alphas[:, None] + betas[:, None] * nbytes
    logs = np.log(seconds) - np.log(shapes)
    levels = np.median(logs, axis=1)
    residuals = np.abs(logs - levels[:, None]).sum(axis=1)
    index = int(residuals.argmin())
    level = math.exp(levels[index])
    line = _Line(
        alpha_s=level * float(alphas[index]),
        beta_s_per_byte=level * float(betas[index]),
        residual=float(residuals[index]),
    )
    return _Candidate(float(slopes[index]), line)
