"""The JSON that nccl-tests writes with ``-J``.

``args``, ``config`` with ``devices``, and ``results``: a list of ``size``, ``redop``,
``root`` and, under ``out_of_place`` and ``in_place``, ``time`` (us), ``alg_bw``,
``bus_bw`` and ``nwrong``. With ``out_of_place_per_iter`` the median, minimum and 95th
percentile are real ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from comm_plan.commbench.measurement import Measurement
from comm_plan.commbench.nccl_rows import (
    DEFAULT_ITERATIONS,
    SYNC,
    ResultRow,
    collective_of,
    in_group_of_first,
    samples,
)
from comm_plan.errors import DocumentError
from comm_plan.plans.document import parse_object, refused_as


def recognises(text: str) -> bool:
    """Return whether ``text`` is meant to be JSON."""
    return text.lstrip().startswith("{")


def read(
    text: str, source: str = "<text>", world_size: int | None = None
) -> list[Measurement]:
    """Read the one measurement in ``text``.

    Args:
        text: the JSON.
        source: the file's name, for messages.
        world_size: number of ranks where the JSON does not say it; None: not known.

    Raises:
        DocumentError: not JSON of nccl-tests, or as
            :func:`comm_plan.commbench.nccl_tests.read`.
    """
    report = parse_object(text, source)
    try:
        with refused_as(source):
            return [_measurement(report, source, world_size)]
    except KeyError as error:
        raise DocumentError(
            f"{source}: not the JSON of nccl-tests -J: there is no {error}"
        ) from None
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise DocumentError(
            f"{source}: not the JSON of nccl-tests -J: {error}"
        ) from None


def _measurement(
    report: Mapping[str, Any], source: str, given: int | None
) -> Measurement:
    config = report.get("config", {})
    devices = config.get("devices", [])
    iterations = int(config.get("iterations", DEFAULT_ITERATIONS))
    rows = [_row(result, iterations) for result in report["results"]]
    program = re.search(r"\w+?_perf", " ".join(report.get("args", [])[:1]))
    ranks = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
    hosts = {int(device["rank"]): str(device["hostname"]) for device in devices}
    groups = {int(device["rank"]): device.get("group") for device in devices}
    together = in_group_of_first(hosts, groups)
    # Of each process only the first device is named.
    most = max(hosts, default=0) + ranks
    if len(together) < len(hosts):
        most = len(together) * ranks
    world_size = most if most > 1 else None
    name = program and program[0]
    return Measurement(
        samples=samples(rows, source),
        collective=collective_of(rows, name, source, world_size or given),
        sync=SYNC,
        backend=str(report.get("backend", "nccl")),
        world_size=world_size,
        hosts=tuple(dict.fromkeys(together.values())),
    )


def _row(result: Mapping[str, Any], iterations: int) -> ResultRow:
    place = "out_of_place" if result.get("out_of_place") else "in_place"
    times = result[place]
    single = result.get(f"{place}_per_iter", {})
    time_us = times["cpu_time"] if "cpu_time" in times else times["time"]
    return ResultRow(
        nbytes=int(result["size"]),
        time_us=float(single.get("p50_us", time_us)),
        algbw=float(times["alg_bw"]),
        busbw=float(times["bus_bw"]),
        redop=str(result.get("redop", "none")),
        root=int(result.get("root", -1)),
        wrong=float(times.get("nwrong") or 0),
        iterations=int(result.get("actual_iterations", iterations)),
        min_us=single.get("min_us"),
        p95_us=single.get("p95_us"),
        of_launch="cpu_time" in times,
    )
