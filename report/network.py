"""A network document as tables for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich import box
from rich.table import Table

from comm_plan import units
from comm_plan.collectives.bandwidth import algbw, busbw
from comm_plan.plans.network import CollectiveCost, Fit, Network, Sample


@dataclass(frozen=True)
class MeasuredSize:
    """One size of one collective.

    Attributes:
        sample: what was measured.
        algbw: algorithm bandwidth of the median, bytes per second.
        busbw: bus bandwidth of the median, bytes per second; None for gTop-k.
        fit_s: fitted cost; None without a fit.
        fit_error: fitted over measured, less 1; None without a fit.
    """

    sample: Sample
    algbw: float
    busbw: float | None
    fit_s: float | None
    fit_error: float | None


def rows(network: Network, collective: str) -> Iterator[MeasuredSize]:
    """Yield a row for every sample of ``collective``, in order of size."""
    cost = network.collectives[collective]
    for sample in cost.samples:
        fit_s = cost.fit.seconds(sample.nbytes) if cost.fit else None
        yield MeasuredSize(
            sample=sample,
            algbw=algbw(sample.nbytes, sample.median_s),
            busbw=busbw(collective, network.world_size, sample.nbytes, sample.median_s),
            fit_s=fit_s,
            fit_error=None if fit_s is None else fit_s / sample.median_s - 1,
        )


def overview(network: Network) -> Table:
    """Return one row per collective: start-up, bandwidth and quality of the fit.

    What is known of none has no column.
    """
    title = _setting(network)
    if network.emulated_link is not None:
        title += f", emulated link of {network.emulated_link}"
    facts = {
        collective: _facts(network, collective) for collective in network.collectives
    }
    result = Table(title=title, box=box.SIMPLE_HEAD)
    result.add_column("collective")
    known = [name for name in _FACTS if any(of[name] for of in facts.values())]
    for name in known:
        result.add_column(name, justify="right", overflow="fold")
    for collective, of in facts.items():
        result.add_row(collective, *(of[name] for name in known))
    return result


_FACTS = ("start-up", "largest", "median", "busbw", "fit error")


def _facts(network: Network, collective: str) -> dict[str, str]:
    """Return what the overview says of a collective, by :data:`_FACTS`."""
    fit = network.collectives[collective].fit
    *_, last = [None, *rows(network, collective)]
    return {
        "start-up": units.seconds(fit.segments[0].alpha_s) if fit else "",
        "largest": binary(last.sample.nbytes) if last else "",
        "median": units.seconds(last.sample.median_s) if last else "",
        "busbw": rate(last.busbw) if last else "",
        "fit error": _error(fit),
    }


def _setting(network: Network) -> str:
    return f"{units.counted(network.world_size, 'rank')}, {network.backend}"


def _error(fit: Fit | None) -> str:
    if fit is None or fit.median_error is None:
        return ""
    return units.percent(fit.median_error)


def table(network: Network, collective: str) -> Table:
    """Return the rows of ``collective`` and its fit, to be printed with rich."""
    cost = network.collectives[collective]
    result = Table(
        title=f"{collective}, {_setting(network)}",
        caption=_caption(cost),
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    if not cost.samples:
        result.add_column(_caption(cost))
        result.caption = None
        return result
    for name in ("size", "median", "min", "p95", "algbw", "busbw", "fit", "error"):
        result.add_column(name, justify="right", overflow="fold")
    for row in rows(network, collective):
        result.add_row(*_cells(row))
    return result


def _cells(row: MeasuredSize) -> tuple[str, ...]:
    sample = row.sample
    return (
        binary(sample.nbytes),
        units.seconds(sample.median_s),
        units.seconds(sample.min_s),
        units.seconds(sample.p95_s),
        rate(row.algbw),
        rate(row.busbw),
        "" if row.fit_s is None else units.seconds(row.fit_s),
        "" if row.fit_error is None else units.deviation(row.fit_error, 0),
    )


def _caption(cost: CollectiveCost) -> str:
    fitted = "not fitted" if cost.fit is None else describe(cost.fit)
    longer = (f"{dtype} {units.seconds(s)}/B" for dtype, s in cost.summing.items())
    return "; summing takes longer in ".join(filter(None, (fitted, ", ".join(longer))))


def describe(fit: Fit) -> str:
    """Return a fit in words: its segments and its median error."""
    segments = (
        f"{units.seconds(segment.alpha_s)} + {units.seconds(segment.beta_s_per_byte)}/B"
        f" from {binary(segment.from_nbytes)}"
        for segment in fit.segments
    )
    text = "fit: " + "; ".join(segments)
    if fit.median_error is None:
        return text
    return f"{text}; median error {fit.median_error:.1%}"


def binary(nbytes: int) -> str:
    """Return ``nbytes`` in powers of 1024, as sizes are swept."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if nbytes >= 1024**power:
            return f"{nbytes / 1024**power:.4g} {unit}"
    return f"{nbytes} B"


def rate(bytes_per_s: float | None) -> str:
    """Return a bandwidth, where there is one."""
    return "" if bytes_per_s is None else f"{units.nbytes(bytes_per_s)}/s"
