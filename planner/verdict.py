"""In plain words what there is to gain, and how one plan does."""

from __future__ import annotations

from collections.abc import Sequence

from comm_plan import units
from comm_plan.planner.prediction import Prediction
from comm_plan.planner.problem import DDP_CAPS, HOROVOD_CAPS
from comm_plan.planner.solvers import CHOOSING, MERGED, SOLVERS
from comm_plan.plans.plan import TODAY, WORTHWHILE

WHOSE = {DDP_CAPS: "DDP's", HOROVOD_CAPS: "Horovod's"}
"""Who closes buckets at these caps, in bytes."""


def merged_by(caps_nbytes: tuple[int, ...]) -> str:
    """Return whose buckets have these caps, or how large they are, in bytes."""
    if caps_nbytes in WHOSE:
        return f"{WHOSE[caps_nbytes]} buckets"
    return f"buckets of {', then '.join(map(units.nbytes, caps_nbytes))}"


def verdict(
    rows: Sequence[Prediction], lower_bound_s: float, instead_of: str, *, costed: bool
) -> str:
    """Return in one sentence what planning brings over the buckets of ``threshold``.

    Args:
        rows: at least those of ``threshold`` and ``optimal``.
        lower_bound_s: for dense traffic.
        instead_of: what the buckets of ``threshold`` are called.
        costed: whether the profile says what any compressor costs.
    """
    today = next(row for row in rows if row.solver == TODAY and row.is_plain)
    merged = _best_merged(rows)
    planned = min([merged, *_lossy(rows)], key=lambda row: row.iteration_s)
    gain = _gain(merged, today)
    most = _gain(planned, today)
    if most <= WORTHWHILE:
        return _nothing(rows, today, most, lower_bound_s, instead_of, costed=costed)
    if gain > max(WORTHWHILE, most - WORTHWHILE):
        by = "" if merged.solver == MERGED else f" by {merged.label}"
        return f"merge only{by}: {_less(gain, instead_of)}, exactly dense"
    how = "compress" if planned.largest_ratio > 1 else "meet less often"
    alone = "merging alone gains nothing"
    if gain > WORTHWHILE:
        alone = f"merging alone, exactly dense, {units.percent(gain)}"
    return f"{how}: {planned.label} takes {_less(most, instead_of)}; {alone}"


def judgement(
    row: Prediction, today: Prediction, fastest: Prediction, instead_of: str
) -> str:
    """Return in one sentence how one plan does.

    Args:
        row: that plan.
        today: what it is held against, may be the same.
        fastest: of all plans, may be the same.
        instead_of: what the buckets of ``today`` are called.
    """
    gain = _gain(row, today)
    if row is today:
        text = f"this plan: {instead_of}"
    elif abs(gain) <= WORTHWHILE:
        text = f"this plan, {row.label}: about the time of {instead_of}"
    elif gain > 0:
        text = f"this plan, {row.label}: {_less(gain, instead_of)}"
    else:
        more = units.percent(-gain)
        text = f"this plan, {row.label}, loses: {more} more time than {instead_of}"
    if fastest.iteration_s < row.iteration_s * (1 - WORTHWHILE):
        less = units.percent(_gain(fastest, row))
        text += f"; {fastest.label} takes {less} less than it"
    return text


def _best_merged(rows: Sequence[Prediction]) -> Prediction:
    """Return ``optimal``, or another dense plan that is worthwhile instead of it.

    There may be one where a large tolerance was asked for.
    """
    dense = [row for row in rows if row.is_plain and row.largest_ratio == 1]
    optimal = next(row for row in rows if row.solver == MERGED and row.is_plain)
    fastest = min(dense, key=lambda row: row.iteration_s)
    worthwhile = fastest.iteration_s < optimal.iteration_s * (1 - WORTHWHILE)
    return fastest if worthwhile else optimal


def _lossy(rows: Sequence[Prediction]) -> list[Prediction]:
    """Return what may be advised beside merging.

    Where ``auto`` is among them it alone compresses: the others keep to no accuracy.
    """
    lossy = [row for row in rows if row.largest_ratio > 1 or row.is_local]
    if any(row.solver == CHOOSING for row in rows):
        return [row for row in lossy if row.solver == CHOOSING or row.is_local]
    return lossy


def _nothing(
    rows: Sequence[Prediction],
    today: Prediction,
    most: float,
    lower_bound_s: float,
    instead_of: str,
    *,
    costed: bool,
) -> str:
    """Return why there is nothing to gain, or what was not tried."""
    exposed = units.percent(_share(today.exposed_s, today.iteration_s))
    if today.exposed_s <= WORTHWHILE * today.iteration_s:
        return (
            f"nothing to gain: {instead_of} leave only {exposed} of the iteration "
            "exposed"
        )
    best = "no plan is"
    if most > 0 and units.shows(most):
        best = f"the best plan is {units.percent(most)}"
    text = (
        f"{best} faster than {instead_of}, and no dense plan beats "
        f"{units.seconds(lower_bound_s)}"
    )
    if any(not (row.is_plain and SOLVERS[row.solver].is_baseline) for row in rows):
        return f"nothing to gain: {text}"
    how = f": try --solver {CHOOSING}" if costed else ", but the profile costs none"
    return (
        f"merging gains nothing: {text}; {exposed} of the iteration is exposed, which "
        f"compression may save{how}"
    )


def _less(gain: float, instead_of: str) -> str:
    return f"{units.percent(gain)} less time than {instead_of}"


def _gain(row: Prediction, instead_of: Prediction) -> float:
    """Return the share of the time of ``instead_of`` that is saved; of none, none."""
    return _share(instead_of.iteration_s - row.iteration_s, instead_of.iteration_s)


def _share(part_s: float, whole_s: float) -> float:
    return part_s / whole_s if whole_s > 0 else 0.0
