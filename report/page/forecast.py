"""What planning predicts: solvers side by side, and over numbers of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from comm_plan import units
from comm_plan.report.page.axes import linear, logarithmic
from comm_plan.report.page.blocks import (
    Block,
    Cell,
    Figure,
    Section,
    Table,
    Text,
    count,
    seconds,
    section,
)
from comm_plan.report.page.chart import Point, Rule, Series, chart
from comm_plan.report.page.given import Forecast, Given
from comm_plan.report.solvers import (
    ComparedPlan,
    Comparison,
    bound_text,
    compression_of,
)


def solvers(given: Given) -> Section | None:
    """Return the solvers' predictions side by side, or why there are none."""
    found = given.forecast
    blocks = _missing(given) if found is None else _compared(found)
    return section("solvers", "What solvers predict", blocks)


def scaling(given: Given) -> Section | None:
    """Return the solvers' iteration times over numbers of ranks."""
    found = given.forecast
    if found is None:
        return None
    return section("scaling", "Scaling over ranks", _scaled(found))


def _missing(given: Given) -> Iterator[Block]:
    if given.no_forecast:
        yield Text(f"Not shown: {given.no_forecast}")


def _compared(forecast: Forecast) -> Iterator[Block]:
    comparison = forecast.comparison
    ranks = units.counted(comparison.world_size, "rank")
    if comparison.extrapolated_from is not None:
        ranks += f", extrapolated from {comparison.extrapolated_from}"
    yield Table(
        f"predicted with {ranks}, fastest first",
        ("solver", "iteration", "exposed", "buckets", "x lower bound", "compression"),
        tuple(_row(row) for row in comparison.rows),
    )
    yield Text(f"{bound_text(comparison.lower_bound_s).capitalize()}.")
    for name, reason in comparison.left_out.items():
        yield Text(f"{name} is left out: {reason}")


def _row(row: ComparedPlan) -> tuple[Cell, ...]:
    return (
        Cell(row.label),
        seconds(row.iteration_s),
        seconds(row.exposed_s),
        count(row.buckets),
        Cell(f"{row.of_bound:.2f}", row.of_bound),
        Cell(compression_of(row), row.largest_ratio),
    )


def _scaled(forecast: Forecast) -> Iterator[Block]:
    if forecast.no_scaling:
        yield Text(f"Not shown: {forecast.no_scaling}")
    if not forecast.scaling:
        return
    names = _names(forecast.scaling)
    yield _figure(forecast.scaling, names)
    yield Table(
        "predicted iteration time",
        ("ranks", "basis", *names, "lower bound"),
        tuple(_ranks(comparison, names) for comparison in forecast.scaling),
    )


def _names(scaling: Sequence[Comparison]) -> list[str]:
    return list(dict.fromkeys(row.solver for each in scaling for row in each.rows))


def _figure(scaling: Sequence[Comparison], names: Sequence[str]) -> Figure:
    series = [_series(scaling, name, style) for style, name in enumerate(names)]
    bound = tuple(map(_bound, scaling))
    series.append(Series("lower bound", bound, len(names), shapes=False))
    heights = [point.y for one in series for point in one.points]
    return chart(
        "predicted iteration time",
        logarithmic("ranks", (each.world_size for each in scaling), _whole, base=2),
        linear("iteration time", heights, units.round_seconds),
        series,
        rules=[
            Rule("measured here", x=each.world_size)
            for each in scaling
            if each.extrapolated_from is None
        ],
        note="Costs of collectives are carried to other numbers of ranks by their "
        "closed forms.",
    )


def _bound(comparison: Comparison) -> Point:
    ranks, bound_s = comparison.world_size, comparison.lower_bound_s
    tip = f"lower bound, {units.counted(ranks, 'rank')}\n{units.seconds(bound_s)}"
    return Point(ranks, bound_s, tip)


def _whole(value: float) -> str:
    return f"{value:g}"


def _series(scaling: Sequence[Comparison], name: str, style: int) -> Series:
    points = []
    for each in scaling:
        time_s = _times(each).get(name)
        if time_s is not None:
            ranks = units.counted(each.world_size, "rank")
            tip = f"{name}, {ranks}\n{units.seconds(time_s)}"
            if each.lower_bound_s > 0:
                bound = units.times(time_s / each.lower_bound_s)
                tip += f", {bound} the lower bound"
            points.append(Point(each.world_size, time_s, tip))
    return Series(name, tuple(points), style)


def _times(comparison: Comparison) -> dict[str, float]:
    return {row.solver: row.iteration_s for row in comparison.rows}


def _ranks(comparison: Comparison, names: Sequence[str]) -> tuple[Cell, ...]:
    found = _times(comparison)
    measured = comparison.extrapolated_from is None
    return (
        count(comparison.world_size),
        Cell("measured" if measured else "extrapolated"),
        *(seconds(found.get(name)) for name in names),
        seconds(comparison.lower_bound_s),
    )
