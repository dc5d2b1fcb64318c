"""What a file of another benchmark says about one collective."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from statistics import median

from comm_plan.plans.network import Sample


@dataclass(frozen=True)
class Measurement:
    """One collective as read from a file.

    Attributes:
        collective: a name of a network document.
        samples: in order of size, each size once.
        sync: how the ranks were synchronised and what the times are.
        backend: ``nccl``, ``mpi``, ...
        world_size: number of ranks; None: the file does not say.
        hosts: as far as the file names them, each once.
        implied: ``world_size`` is that of any such measurement, whatever the run had.
    """

    collective: str
    samples: tuple[Sample, ...]
    sync: str
    backend: str
    world_size: int | None
    hosts: tuple[str, ...] = ()
    implied: bool = False


def merged(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """Return ``samples`` in order of size, those of the same size made one."""
    by_size = attrgetter("nbytes")
    groups = groupby(sorted(samples, key=by_size), key=by_size)
    return tuple(_merge(list(group)) for _, group in groups)


def _merge(samples: list[Sample]) -> Sample:
    if len(samples) == 1:
        return samples[0]
    return Sample(
        nbytes=samples[0].nbytes,
        median_s=median(sample.median_s for sample in samples),
        min_s=min(sample.min_s for sample in samples),
        p95_s=max(sample.p95_s for sample in samples),
        iterations=sum(sample.iterations for sample in samples),
    )
