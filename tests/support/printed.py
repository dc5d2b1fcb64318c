"""What nccl-tests and OSU would print of a network's samples: files to read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from comm_plan.collectives.bandwidth import algbw, busbw
from comm_plan.commbench.nccl_rows import PROGRAMS, ResultRow
from comm_plan.commbench.osu import TITLES
from comm_plan.plans import Network, Sample

FLOAT_NBYTES = 4
FILE_VERSION = 2  # the one that nccl-tests 2.18 writes

_HEAD = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}"
_TIMES = "  {:>9}  {:>6}  {:>6}  {:>6}"
_OSU_HEADS = ("Avg Latency(us)", "Min Latency(us)", "Max Latency(us)")


def by_nccl_tests(network: Network, collective: str) -> str:
    """Return the text of nccl-tests; both groups of columns hold the median."""
    program = _program(collective)
    rows = list(_rows(network, collective))
    lines = [
        f"# Collective test starting: {program}",
        f"# nThread 1 nGpus 1 minBytes {rows[0].nbytes} maxBytes {rows[-1].nbytes} "
        f"iters: {min(row.iterations for row in rows)}",
        f"# Backend {network.backend}",
        "#",
        "# Using devices",
        *(
            f"#  Rank {rank:2d} Group  0 Pid      0 on {host:>10} device  0 [0x00] none"
            for rank, host in _ranks(network)
        ),
        "#",
        _HEAD.format("size", "count", "type", "redop", "root")
        + 2 * _TIMES.format("time", "algbw", "busbw", "#wrong"),
        _HEAD.format("(B)", "(elements)", "", "", "")
        + 2 * _TIMES.format("(us)", "(GB/s)", "(GB/s)", ""),
        *(_line(network, collective, row) for row in rows),
        f"# Collective test concluded: {program}",
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def by_nccl_tests_json(network: Network, collective: str) -> str:
    """Return the JSON of nccl-tests ``-J``, with times of single iterations."""
    ranks = [{"rank": rank, "hostname": host} for rank, host in _ranks(network)]
    report = {
        "version": FILE_VERSION,
        "args": [_program(collective)],
        "backend": network.backend,
        "config": {"nthreads": 1, "ngpus": 1, "devices": ranks},
        "results": [
            _result(network, collective, row) for row in _rows(network, collective)
        ],
    }
    return json.dumps(report, indent=2) + "\n"


def by_osu(network: Network, collective: str) -> str:
    """Return the text of OSU: Avg is the median, Max the 95th percentile."""
    (title,) = (title for title, name in TITLES.items() if name == collective)
    parts = network.world_size if collective == "allgather" else 1
    words = ["# OSU MPI", *filter(None, [title]), "Latency Test"]
    head = f"{'# Size':<10}" + "".join(f"{name:>18}" for name in _OSU_HEADS)
    lines = [" ".join(words), head + "  Iterations"]
    for sample in network.collectives[collective].samples:
        times_s = (sample.median_s, sample.min_s, sample.p95_s)
        cells = "".join(f"{seconds * 1e6:>18.2f}" for seconds in times_s)
        lines.append(f"{sample.nbytes // parts:<10}{cells}{sample.iterations:>12}")
    return "\n".join(lines) + "\n"


def _program(collective: str) -> str:
    return next(p for p, name in PROGRAMS.items() if name == collective)


def _ranks(network: Network) -> Iterator[tuple[int, str]]:
    hosts = network.hosts or ("unknown",)
    for rank in range(network.world_size):
        yield rank, hosts[rank * len(hosts) // network.world_size]


def _rows(network: Network, collective: str) -> Iterator[ResultRow]:
    for sample in network.collectives[collective].samples:
        yield _row(network.world_size, collective, sample)


def _row(world_size: int, collective: str, sample: Sample) -> ResultRow:
    bus = busbw(collective, world_size, sample.nbytes, sample.median_s)
    return ResultRow(
        nbytes=sample.nbytes,
        time_us=sample.median_s * 1e6,
        algbw=algbw(sample.nbytes, sample.median_s) / 1e9,
        busbw=(bus or 0.0) / 1e9,
        redop="sum" if collective in ("allreduce", "reduce_scatter") else "none",
        root=0 if collective == "broadcast" else -1,
        iterations=sample.iterations,
        min_us=sample.min_s * 1e6,
        p95_us=sample.p95_s * 1e6,
    )


def _count(network: Network, collective: str, row: ResultRow) -> int:
    shared = collective in ("allgather", "reduce_scatter")
    return row.nbytes // FLOAT_NBYTES // (network.world_size if shared else 1)


def _line(network: Network, collective: str, row: ResultRow) -> str:
    size = f"{row.nbytes:>12}  {_count(network, collective, row):>12}"
    kind = f"  {'float':>8}  {row.redop:>6}  {row.root:>6}"
    times = f"{row.time_us:.2f}", f"{row.algbw:.2f}", f"{row.busbw:.2f}", "0"
    return size + kind + 2 * _TIMES.format(*times)


def _result(network: Network, collective: str, row: ResultRow) -> dict[str, Any]:
    return {
        "size": row.nbytes,
        "count": _count(network, collective, row),
        "type": "float",
        "redop": row.redop,
        "root": str(row.root),
        "out_of_place": {
            "time": row.time_us,
            "alg_bw": row.algbw,
            "bus_bw": row.busbw,
            "nwrong": 0.0,
        },
        "out_of_place_per_iter": {
            "min_us": row.min_us,
            "p50_us": row.time_us,
            "p95_us": row.p95_us,
        },
        "actual_iterations": row.iterations,
    }
