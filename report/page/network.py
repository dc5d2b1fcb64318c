"""What collectives cost: samples and fits, drawn and listed."""

from __future__ import annotations

from collections.abc import Iterator

from comm_plan import units
from comm_plan.collectives.bandwidth import busbw
from comm_plan.plans import CollectiveCost, Fit, Network
from comm_plan.report.network import MeasuredSize, binary, describe, rate, rows
from comm_plan.report.page.axes import logarithmic
from comm_plan.report.page.blocks import (
    NONE,
    Block,
    Cell,
    Figure,
    Figures,
    Section,
    Table,
    seconds,
    section,
)
from comm_plan.report.page.chart import Point, Series, chart
from comm_plan.report.page.given import Given

UNMEASURED = (1024, 64 * 1024**2)
"""Sizes over which a fit without samples is drawn."""

_FIT_POINTS = 48


def network(given: Given) -> Section | None:
    """Return the network's collectives, each with a chart and its numbers."""
    found = given.network
    if found is None:
        return None
    return section("network", "What collectives cost", _blocks(found))


def _blocks(network: Network) -> Iterator[Block]:
    names = tuple(network.collectives)
    yield Figures(tuple(_figure(network, name) for name in names))
    for name in names:
        if network.collectives[name].samples:
            yield _table(network, name)


def _figure(network: Network, name: str) -> Figure:
    cost = network.collectives[name]
    measured, fitted = _measured(network, name), _fitted(network, name)
    places = [*measured.points, *fitted.points]
    heights = [height for p in places for height in (p.low, p.y, p.high) if height]
    return chart(
        name,
        logarithmic("message size", (p.x for p in places), _size, base=2),
        logarithmic("time", heights, units.round_seconds),
        [series for series in (measured, fitted) if series.points],
        note=_note(cost),
    )


def _note(cost: CollectiveCost) -> str:
    return describe(cost.fit) if cost.fit else "not fitted"


def _size(nbytes: float) -> str:
    return binary(round(nbytes))


def _measured(network: Network, name: str) -> Series:
    points = tuple(
        Point(
            row.sample.nbytes,
            row.sample.median_s,
            _tip(row),
            row.sample.min_s,
            row.sample.p95_s,
        )
        for row in rows(network, name)
    )
    return Series("measured: median, min to p95", points, line=False)


def _tip(row: MeasuredSize) -> str:
    sample = row.sample
    lines = [
        f"{binary(sample.nbytes)}: {units.seconds(sample.median_s)}",
        f"min {units.seconds(sample.min_s)}, p95 {units.seconds(sample.p95_s)}, "
        f"{units.counted(sample.iterations, 'iteration')}",
        f"algorithm bandwidth {rate(row.algbw)}",
    ]
    if row.busbw is not None:
        lines.append(f"bus bandwidth {rate(row.busbw)}")
    if row.fit_s is not None and row.fit_error is not None:
        off = units.deviation(row.fit_error)
        lines.append(f"fit {units.seconds(row.fit_s)}, {off}")
    return "\n".join(lines)


def _fitted(network: Network, name: str) -> Series:
    cost = network.collectives[name]
    if cost.fit is None:
        return Series("fit", ())
    fit, sizes = cost.fit, _sizes(cost, cost.fit)
    points = tuple(
        Point(nbytes, fit.seconds(nbytes), _fit_tip(network, name, fit, nbytes))
        for nbytes in sizes
    )
    return Series("fit", points, style=1, shapes=False)


def _sizes(cost: CollectiveCost, fit: Fit) -> list[float]:
    """Return sizes in geometric steps, and those around which segments change."""
    measured = [sample.nbytes for sample in cost.samples if sample.nbytes > 0]
    first, last = (measured or UNMEASURED)[0], (measured or UNMEASURED)[-1]
    steps = (i / (_FIT_POINTS - 1) for i in range(_FIT_POINTS))
    sizes = {first * (last / first) ** step for step in steps}
    for segment in fit.segments[1:]:
        start = segment.from_nbytes
        sizes |= {float(n) for n in (start - 1, start) if first <= n <= last}
    return sorted(sizes)


def _fit_tip(network: Network, name: str, fit: Fit, nbytes: float) -> str:
    time_s = fit.seconds(nbytes)
    text = f"fit at {binary(round(nbytes))}: {units.seconds(time_s)}"
    bandwidth = busbw(name, network.world_size, nbytes, time_s) if time_s else None
    return text if bandwidth is None else f"{text}\nbus bandwidth {rate(bandwidth)}"


def _table(network: Network, name: str) -> Table:
    return Table(
        f"{name}: samples",
        ("size", "median", "min", "p95", "algbw", "busbw", "fit", "fit error"),
        tuple(_cells(row) for row in rows(network, name)),
        folded=True,
    )


def _cells(row: MeasuredSize) -> tuple[Cell, ...]:
    sample, error = row.sample, row.fit_error
    return (
        Cell(binary(sample.nbytes), sample.nbytes),
        seconds(sample.median_s),
        seconds(sample.min_s),
        seconds(sample.p95_s),
        Cell(rate(row.algbw), row.algbw),
        Cell(rate(row.busbw) or NONE, row.busbw),
        seconds(row.fit_s),
        Cell(NONE) if error is None else Cell(units.deviation(error), error),
    )
