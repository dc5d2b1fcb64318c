"""How long compressors take on a CPU, beside what others offer and without Numba.

    python -m comm_plan.benchmarks.selection --numel 25000000 --density 0.001 0.01

Every line is the median over interleaved repetitions, so that a slow spell of the
machine meets all methods alike; ``ratio`` is how many times faster it is than the first
line of its table. A selection is a whole step of error feedback: accumulate, select,
reset.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from time import perf_counter
from unittest.mock import patch

import numpy as np
import torch

from comm_plan.compressors import loops
from comm_plan.compressors.packing import (
    pack_codes,
    pack_trits,
    unpack_codes,
    unpack_trits,
)
from comm_plan.compressors.rounding import StochasticRounding
from comm_plan.compressors.selection import accumulate_and_select, fresh_state
from comm_plan.profiler.compression import coded_by_default, compression_costs

Work = Callable[[], object]
Selection = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]

RANKS = 4


def main() -> None:
    """Measure and print one table per group."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numel", type=int, default=25_000_000)
    parser.add_argument("--density", type=float, nargs="+", default=[0.001, 0.01])
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for density in options.density:
        k = max(1, round(options.numel * density))
        title = f"select {k} of {options.numel} ({density:.2%})"
        report(title, selection(options.numel, k, options.repetitions))
    report(f"trits, {options.numel}", trits(options.numel, options.repetitions))
    report(f"4-bit codes, {options.numel}", codes(options.numel, options.repetitions))
    for kind in ("double_squeeze", "qsgd", "terngrad"):
        title = f"{kind}, a step of {RANKS} ranks, {options.numel}"
        report(title, steps(kind, options.numel, options.repetitions))


def selection(numel: int, k: int, repetitions: int) -> dict[str, list[float]]:
    """Return the seconds that each method takes for one step of error feedback."""
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(numel, generator=generator)
    residuals = {
        name: torch.randn(numel, generator=generator.manual_seed(1))
        for name in SELECTIONS
    }
    works = {
        name: partial(make(), residuals[name], gradient, k)
        for name, make in SELECTIONS.items()
    }
    return interleaved(works, repetitions)


def by_torch(residual: torch.Tensor, gradient: torch.Tensor, k: int) -> torch.Tensor:
    """Accumulate, ``torch.topk`` of the magnitudes, reset."""
    residual.add_(gradient)
    indices = residual.abs().topk(k, sorted=False).indices
    residual[indices] = 0
    return indices


def by_argpartition(
    residual: torch.Tensor, gradient: torch.Tensor, k: int
) -> torch.Tensor:
    """Accumulate, ``numpy.argpartition`` of the magnitudes, reset."""
    residual.add_(gradient)
    magnitudes = np.abs(residual.numpy())
    indices = torch.from_numpy(np.argpartition(magnitudes, -k)[-k:])
    residual[indices] = 0
    return indices


class ByUs:
    """All in one pass, which begins where the last one ended."""

    def __init__(self) -> None:
        self._state = fresh_state(torch.device("cpu"))

    def __call__(
        self, residual: torch.Tensor, gradient: torch.Tensor, k: int
    ) -> torch.Tensor:
        """Return the indices."""
        return accumulate_and_select(residual, gradient, k, self._state)[1]


class ByUsWithoutNumba(ByUs):
    """The same by NumPy."""

    def __call__(
        self, residual: torch.Tensor, gradient: torch.Tensor, k: int
    ) -> torch.Tensor:
        """Return the indices."""
        with patch.object(loops, "_compiled", lambda: None):
            return super().__call__(residual, gradient, k)


SELECTIONS: Mapping[str, Callable[[], Selection]] = {
    "torch.topk": lambda: by_torch,
    "numpy.argpartition": lambda: by_argpartition,
    "ours, without Numba": ByUsWithoutNumba,
    "ours": ByUs,
}


def trits(numel: int, repetitions: int) -> dict[str, list[float]]:
    """Return the seconds of what TernGrad does to a tensor."""
    x = torch.rand(numel).mul_(2).sub_(1)
    levels = torch.empty(numel, dtype=torch.int8)
    rounding = StochasticRounding((0,), x.device)
    rounding.round(x, levels)
    packed, copy = pack_trits(levels), torch.empty_like(x)
    return interleaved(
        {
            "torch.bernoulli": lambda: torch.bernoulli(x.abs()),
            "copy float32": lambda: copy.copy_(x),
            "StochasticRounding": lambda: rounding.round(x, levels),
            "pack_trits": lambda: pack_trits(levels),
            "unpack_trits": lambda: unpack_trits(packed, numel),
        },
        repetitions,
    )


def codes(numel: int, repetitions: int) -> dict[str, list[float]]:
    """Return the seconds of packing and unpacking QSGD's levels."""
    values = torch.randint(0, 16, (numel,), dtype=torch.uint8)
    packed, copy = pack_codes(values, 4), torch.empty_like(values)
    return interleaved(
        {
            "copy uint8": lambda: copy.copy_(values),
            "pack_codes": lambda: pack_codes(values, 4),
            "unpack_codes": lambda: unpack_codes(packed, 4, numel),
        },
        repetitions,
    )


def steps(kind: str, numel: int, repetitions: int) -> dict[str, list[float]]:
    """Return the seconds of one rank's whole step, with Numba's loops and without."""
    coded = coded_by_default(kind, RANKS)

    def seconds() -> float:
        *_, cost = compression_costs(numel, kinds=[kind])[kind]
        return cost.compress_s + cost.codec_s(coded.decoded, coded.encoded)

    found: dict[str, list[float]] = {"by PyTorch": [], "by Numba": []}
    for _ in range(repetitions):
        with patch.object(loops, "_compiled", lambda: None):
            found["by PyTorch"].append(seconds())
        found["by Numba"].append(seconds())
    return found


def interleaved(works: Mapping[str, Work], repetitions: int) -> dict[str, list[float]]:
    """Return the seconds of every work, after one round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repetitions + 1):
        for name, work in works.items():
            start = perf_counter()
            work()
            seconds[name].append(perf_counter() - start)
    return {name: times[1:] for name, times in seconds.items()}


def report(title: str, seconds: Mapping[str, list[float]]) -> None:
    """Print median and minimum in milliseconds and the ratio of the medians."""
    print(f"\n{title}\n{'':24}{'median ms':>12}{'min ms':>12}{'ratio':>10}")
    first = median(next(iter(seconds.values())))
    for name, times in seconds.items():
        middle = median(times)
        print(
            f"{name:24}{1e3 * middle:12.2f}{1e3 * min(times):12.2f}"
            f"{first / middle:9.2f}x"
        )


if __name__ == "__main__":
    main()
