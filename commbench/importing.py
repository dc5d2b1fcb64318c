"""Network documents from files of other benchmarks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from comm_plan.collectives.registry import check_known
from comm_plan.commbench import nccl_tests, nccl_tests_json, osu
from comm_plan.commbench.fit import fit
from comm_plan.commbench.measurement import Measurement, merged
from comm_plan.errors import DocumentError, MismatchError, one_line
from comm_plan.plans.document import refused_as
from comm_plan.plans.files import read_text
from comm_plan.plans.network import CollectiveCost, Network

_T = TypeVar("_T", str, int)


def load(
    paths: Iterable[str | os.PathLike[str]],
    world_size: int | None = None,
    backend: str | None = None,
) -> Network:
    """Read files of nccl-tests (text or JSON) and OSU into one fitted network.

    Args:
        paths: the files; what they say of the same collective is put together.
        world_size: number of ranks; None: as the files say.
        backend: ``nccl``, ``mpi`` or ``gloo``; None: as the files say.

    Raises:
        DocumentError: a file cannot be read or is neither, holds wrong or no results,
            or does not say how many ranks there were.
        MismatchError: the files, or they and ``world_size``, do not agree.
    """
    files = [str(path) for path in paths]
    names = one_line(", ".join(files))
    with refused_as(names):
        measurements = [
            part for path in files for part in parse(read_text(path), path, world_size)
        ]
        check_known(part.collective for part in measurements)
        ranks = _ranks(measurements)
        if world_size is not None:
            ranks.add(world_size)
        return Network(
            backend=backend
            or _only({part.backend for part in measurements}, "backend", names),
            world_size=_only(ranks, "number of ranks", names),
            hosts=tuple(
                dict.fromkeys(host for part in measurements for host in part.hosts)
            ),
            collectives=_costs(measurements),
            environment={"imported_from": names},
        )


def parse(
    text: str, source: str = "<text>", world_size: int | None = None
) -> list[Measurement]:
    """Read ``text``, whichever of the formats it is in.

    Raises:
        DocumentError: as :func:`load`.
    """
    if nccl_tests_json.recognises(text):
        return nccl_tests_json.read(text, source, world_size)
    if nccl_tests.recognises(text):
        return nccl_tests.read(text, source, world_size)
    if osu.recognises(text):
        return osu.read(text, source, world_size)
    raise DocumentError(
        f"{source}: neither nccl-tests nor OSU output: there is no line with size, "
        'algbw and busbw, and none that starts with "# OSU MPI" or "# OSU NCCL"'
    )


def _ranks(measurements: Sequence[Measurement]) -> set[int]:
    """Return the numbers of ranks, an implied one only where nothing else was read."""
    only_implied = all(part.implied for part in measurements)
    return {
        part.world_size
        for part in measurements
        if part.world_size and (only_implied or not part.implied)
    }


def _only(values: set[_T], what: str, names: str) -> _T:
    """Return the one value."""
    if not values:
        raise DocumentError(f"{names}: does not tell the {what}: give --world-size")
    if len(values) > 1:
        several = ", ".join(sorted(map(str, values)))
        raise MismatchError(
            f"{names}: the {what} is {several}: import what belongs together"
        )
    return values.pop()


def _costs(measurements: Sequence[Measurement]) -> dict[str, CollectiveCost]:
    by_name = attrgetter("collective")
    groups = groupby(sorted(measurements, key=by_name), key=by_name)
    return {name: _cost(list(group)) for name, group in groups}


def _cost(parts: Sequence[Measurement]) -> CollectiveCost:
    samples = merged(sample for part in parts for sample in part.samples)
    sync = "; ".join(dict.fromkeys(part.sync for part in parts))
    return CollectiveCost(samples=samples, fit=fit(samples), sync=sync)
